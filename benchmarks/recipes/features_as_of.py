"""polars: join each event with what was known of the user at that time."""

from datetime import UTC, datetime, timedelta

import polars as pl

noon = datetime(2024, 1, 1, 12, tzinfo=UTC)
events = pl.DataFrame([{"user": u, "time": noon + timedelta(hours=h)} for u, h in [(1, 0), (1, 5), (2, 1), (2, 30)]])
states = pl.DataFrame(
    {
        "user": [1, 1, 2],
        "time": [noon - timedelta(hours=1), noon + timedelta(hours=4), noon],
        "balance": [10.0, 99.0, 5.0],
    }
)
joined = events.sort("time").join_asof(states.sort("time"), on="time", by="user", tolerance="1d").sort("user", "time")
print(joined)
assert joined["balance"].to_list() == [10.0, 99.0, 5.0, None]
