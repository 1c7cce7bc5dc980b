"""polars: keep the rows whose key is in a list, or is not."""

import polars as pl

clicks = pl.DataFrame([{"user": i % 10, "x": i} for i in range(100)])
opted_out = pl.DataFrame([{"user": 3}, {"user": 4}])
active = pl.DataFrame([{"id": user} for user in range(6)])

allowed = clicks.join(opted_out, on="user", how="anti").join(active, left_on="user", right_on="id", how="semi")
print(allowed["user"].unique())
assert allowed.columns == ["user", "x"]
assert set(allowed["user"]) == {0, 1, 2, 5}
