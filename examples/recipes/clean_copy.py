"""Write a cleaned copy of a data set as Parquet, partitioned by day; a job that was killed continues where it was."""

import tempfile

import polars as pl

import cedar
from cedar import col

folder = tempfile.mkdtemp()
days, users = [i // 100 for i in range(300)], [f" U{i % 50} " for i in range(300)]
raw = pl.DataFrame({"day": days, "user": users, "x": range(300)})
raw.with_columns(x=pl.when(pl.col("x") % 10 > 0).then("x")).write_csv(f"{folder}/raw.csv")

clean = (
    cedar.read_csv(f"{folder}/raw.csv")
    .filter(col("x").is_not_null())
    .with_columns(user=col("user").str.strip_chars().str.to_lowercase())
)
written = clean.write(f"{folder}/clean", partition_by="day", rows_per_file=100)
print(written)
again = clean.write(f"{folder}/clean", partition_by="day", rows_per_file=100)  # done is done
back = cedar.read_parquet(f"{folder}/clean").filter(col("day") == 1).to_polars()
assert written.rows == 270
assert again.resumed == len(written.files)
assert back.height == 90
assert set(back["user"].str.slice(0, 1)) == {"u"}
