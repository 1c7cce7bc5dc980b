"""A row for each tag of an item: a join in which keys repeat on the other side."""

import pandas as pd

import cedar

views = cedar.from_items([{"user": 1, "item": 7}, {"user": 2, "item": 8}, {"user": 3, "item": 9}])
tags = pd.DataFrame({"item": [7, 7, 8], "tag": ["new", "red", "red"]})
tagged = views.join(tags, on="item", how="inner", validate="m:m")
print(tagged.to_pandas())
assert [(row["user"], row["tag"]) for row in tagged] == [(1, "new"), (1, "red"), (2, "red")]
try:
    list(views.join(tags, on="item"))
except cedar.PipelineError as error:
    print(error)  # says which keys are there twice
