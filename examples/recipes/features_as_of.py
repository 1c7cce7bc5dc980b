"""Join each event with what was known of the user at that time: the latest earlier state, never a later one."""

from datetime import UTC, datetime, timedelta

import polars as pl

import cedar

noon = datetime(2024, 1, 1, 12, tzinfo=UTC)
events = cedar.from_items(
    [{"user": u, "time": noon + timedelta(hours=h)} for u, h in [(1, 0), (1, 5), (2, 1), (2, 30)]]
)
states = pl.DataFrame(
    {
        "user": [1, 1, 2],
        "time": [noon - timedelta(hours=1), noon + timedelta(hours=4), noon],
        "balance": [10.0, 99.0, 5.0],
    }
)
joined = events.join_asof(states, on="time", by="user", tolerance="1d")
print(joined.to_polars())
assert [row["balance"] for row in joined] == [10.0, 99.0, 5.0, None]
