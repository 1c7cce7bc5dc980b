"""What is in the rows: names and types, the first of them, and figures of each column."""

import cedar

rows = cedar.from_items([{"age": i % 90, "city": f"c{i % 3}", "tags": ["a"] * (i % 4)} for i in range(500)])
print(rows.columns, rows.schema)
print(rows.head(3))
print(rows.describe())
figures = rows.to_polars().group_by("city").agg(cedar.col("age").mean())  # groups: in memory, by polars
print(figures.sort("city"))
assert rows.describe().columns["city"].nulls == 0
