"""Give scikit-learn's way of training, and any loop over (x, y), the columns of a batch as a tuple."""

import numpy as np

import cedar
from cedar import col

rows = cedar.from_items([{"a": i % 10, "b": i % 3, "day": i // 100} for i in range(1000)])
batches = (
    rows.filter(col("day") >= 2)
    .with_columns(y=(2.0 * col("a") - col("b")))
    .map(lambda a, b: np.array([a, b], np.float64), "a", "b", into="x")
    .select("x", "y")
    .batch(100)
)
left, right = np.zeros((2, 2)), np.zeros(2)
for x, y in batches.loader(format="tuple"):
    x, y = np.asarray(x), np.asarray(y)
    left, right = left + x.T @ x, right + x.T @ y
weights = np.linalg.solve(left, right)  # least squares over all rows, a batch at a time
print(weights)
assert np.allclose(weights, [2, -1])
