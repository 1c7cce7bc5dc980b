"""Train on the past and validate on what came after: a split by time is two filters."""

from datetime import date, timedelta

import cedar
from cedar import col

days = [date(2024, 1, 1) + timedelta(days=i % 40) for i in range(400)]
rows = cedar.from_items([{"day": day, "x": i} for i, day in enumerate(days)])
cut = date(2024, 2, 1)
train, val = rows.filter(col("day") < cut), rows.filter(col("day") >= cut)
print(train.count(), val.count())
assert max(row["day"] for row in train) < cut <= min(row["day"] for row in val)
