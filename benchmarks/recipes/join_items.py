"""polars: add an item's price and category to each click, and drop clicks on items that are gone."""

import polars as pl

clicks = pl.DataFrame([{"user": i % 7, "item": i % 5} for i in range(1000)]).sample(fraction=1, shuffle=True, seed=1)
items = pl.DataFrame({"item": [0, 1, 2, 3], "price": [0.5, 2.0, 9.9, 1.0], "kind": ["a", "b", "b", "a"]})

known = clicks.join(items, on="item", how="inner", validate="m:1")
batch = next(known.iter_slices(4))
print(batch)
assert known.height == 800

every = clicks.join(items, on="item", how="left", validate="m:1")
assert every.height == 1000
