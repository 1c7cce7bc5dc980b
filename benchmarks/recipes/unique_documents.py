"""polars: leave out documents that occur twice, and see how many went."""

import polars as pl
from polars import col

texts = ["the cat sat", "a dog ran", "The cat sat ", "birds sing", "a dog ran"]
documents = pl.DataFrame([{"id": i, "text": text} for i, text in enumerate(texts)])
normal = documents.with_columns(key=col("text").str.to_lowercase().str.strip_chars())
unique = normal.unique("key", keep="first", maintain_order=True).drop("key")
print(unique)
print(documents.height - unique.height, "documents left out")
assert unique["id"].to_list() == [0, 1, 3]
