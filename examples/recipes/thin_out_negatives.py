"""Keep all clicks and a tenth of the rest, with weights that make up for it; other rows go in every epoch."""

import cedar
from cedar import col

rows = cedar.from_items([{"x": i, "click": i % 100 == 0} for i in range(5000)])
clicks = rows.filter(col("click")).with_columns(weight=1.0)
others = rows.filter(~col("click")).sample(fraction=0.1).with_columns(weight=10.0)
thinned = cedar.concat(clicks, others).shuffle(seed=1, window=10_000)
batch = next(iter(thinned.batch(64).loader()))
print(batch["click"].mean(), batch["weight"][:8])
assert thinned.count() == 50 + 495
