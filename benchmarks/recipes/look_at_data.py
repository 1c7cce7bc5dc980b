"""polars: names and types, the first rows, and figures of each column."""

import polars as pl

rows = pl.DataFrame([{"age": i % 90, "city": f"c{i % 3}", "tags": ["a"] * (i % 4)} for i in range(500)])
print(rows.columns, rows.schema)
print(rows.head(3))
print(rows.describe())
figures = rows.group_by("city").agg(pl.col("age").mean())
print(figures.sort("city"))
assert rows["city"].null_count() == 0
