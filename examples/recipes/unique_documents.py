"""Leave out documents that occur twice, in all of the data, and see how many went."""

import cedar
from cedar import col

strings = ["the cat sat", "a dog ran", "The cat sat ", "birds sing", "a dog ran"]
documents = cedar.from_items([{"id": i, "text": text} for i, text in enumerate(strings)])
normal = documents.with_columns(key=col("text").str.to_lowercase().str.strip_chars())
unique = normal.unique("key").drop("key")
print(unique.to_polars())
print(documents.count() - unique.count(), "documents left out")
assert [row["id"] for row in unique] == [0, 1, 3]
