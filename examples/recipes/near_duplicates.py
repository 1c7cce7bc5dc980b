"""Leave out documents that are nearly the same as an earlier one. Needs rensa."""

import rensa  # noqa: F401 - what drop_near_duplicates computes with

import cedar

text = "the quick brown fox jumps over the lazy dog and runs into the dark forest near the old river"
documents = cedar.from_items([{"text": text}, {"text": text.upper() + "!"}, {"text": "something else altogether here"}])
left = documents.drop_near_duplicates("text", threshold=0.8)
print(left.to_polars())
assert left.count() == 2
