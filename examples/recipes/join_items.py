"""Add an item's price and category to each click, and drop clicks on items that are gone."""

import polars as pl

import cedar

clicks = cedar.from_items([{"user": i % 7, "item": i % 5} for i in range(1000)]).shuffle(seed=1)
items = pl.DataFrame({"item": [0, 1, 2, 3], "price": [0.5, 2.0, 9.9, 1.0], "kind": ["a", "b", "b", "a"]})

known = clicks.join(items, on="item", how="inner")
batch = next(iter(known.batch(4).loader(format="arrow")))
print(batch)
assert known.count() == 800

every = clicks.join(items, on="item")  # how="left" keeps all clicks, with nulls for unknown items
assert every.count() == 1000
