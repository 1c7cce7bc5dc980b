"""polars: a row for each impression of a session, with the features of the session next to it."""

import polars as pl

sessions = pl.DataFrame(
    [
        {"user": 1, "history": [5, 6], "shown": [7, 8, 9], "clicked": [0, 1, 0]},
        {"user": 2, "history": [], "shown": [7], "clicked": [1]},
    ]
)
rows = sessions.explode("shown", "clicked")
print(rows)
assert rows.select("user", "shown", "clicked").rows() == [(1, 7, 0), (1, 8, 1), (1, 9, 0), (2, 7, 1)]
