"""polars: train on the past and validate on what came after."""

from datetime import date, timedelta

import polars as pl
from polars import col

days = [date(2024, 1, 1) + timedelta(days=i % 40) for i in range(400)]
rows = pl.DataFrame([{"day": day, "x": i} for i, day in enumerate(days)])
cut = date(2024, 2, 1)
train, val = rows.filter(col("day") < cut), rows.filter(col("day") >= cut)
print(train.height, val.height)
assert train["day"].max() < cut <= val["day"].min()
