"""A share of the rows, a number of them, or draws by weight."""

import cedar
from cedar import col

rows = cedar.from_items([{"x": i, "clicks": i % 10} for i in range(1000)])
few = rows.sample(n=50)  # without replacement, other rows in every epoch
part = rows.sample(fraction=0.2, seed=7)
often = rows.sample(col("clicks") + 1, n=500)  # by weight, with replacement
print(few.count(), part.count(), often.count())
assert len({row["x"] for row in few}) == 50
assert sum(row["clicks"] for row in often) / 500 > 5
