"""polars: write a cleaned copy of a data set as Parquet, partitioned by day."""

import tempfile

import polars as pl
from polars import col

folder = tempfile.mkdtemp()
days, users = [i // 100 for i in range(300)], [f" U{i % 50} " for i in range(300)]
raw = pl.DataFrame({"day": days, "user": users, "x": range(300)})
raw.with_columns(x=pl.when(pl.col("x") % 10 > 0).then("x")).write_csv(f"{folder}/raw.csv")

clean = (
    pl.scan_csv(f"{folder}/raw.csv")
    .filter(col("x").is_not_null())
    .with_columns(user=col("user").str.strip_chars().str.to_lowercase())
)
clean.collect().write_parquet(f"{folder}/clean", partition_by="day", mkdir=True)
back = pl.read_parquet(f"{folder}/clean").filter(col("day") == 1)
print(back)
assert pl.read_parquet(f"{folder}/clean").height == 270
assert back.height == 90
assert set(back["user"].str.slice(0, 1)) == {"u"}
