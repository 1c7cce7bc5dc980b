"""Label impressions by whether a click followed: a left join with another pipeline, which is read once."""

import tempfile

import pyarrow as pa
import pyarrow.parquet as pq

import cedar
from cedar import col

folder = tempfile.mkdtemp()
pq.write_table(pa.table({"request": range(1000), "ad": [i % 9 for i in range(1000)]}), f"{folder}/impressions.parquet")
pq.write_table(pa.table({"request": range(0, 1000, 20), "delay": [1.5] * 50}), f"{folder}/clicks.parquet")

clicks = cedar.read_parquet(f"{folder}/clicks.parquet").unique("request")
labeled = (
    cedar.read_parquet(f"{folder}/impressions.parquet")
    .shuffle(seed=1)
    .join(clicks, on="request")
    .with_columns(label=col("delay").is_not_null())
    .drop("delay")
)
print(labeled.head(5))
assert sum(row["label"] for row in labeled) == 50
