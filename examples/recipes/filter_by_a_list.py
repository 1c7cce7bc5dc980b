"""Keep the rows whose key is in a list, or is not: a semi join and an anti join."""

import cedar

clicks = cedar.from_items([{"user": i % 10, "x": i} for i in range(100)])
opted_out = cedar.from_items([{"user": 3}, {"user": 4}])
active = cedar.from_items([{"id": user} for user in range(6)])

allowed = clicks.join(opted_out, on="user", how="anti").join(active, left_on="user", right_on="id", how="semi")
print(sorted({row["user"] for row in allowed}))
assert allowed.columns == ["user", "x"]
assert {row["user"] for row in allowed} == {0, 1, 2, 5}
