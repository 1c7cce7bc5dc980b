"""Read files of one data set whose columns changed over time: name the types that all should have."""

import tempfile

import pyarrow as pa
import pyarrow.parquet as pq

import cedar

folder = tempfile.mkdtemp()
pq.write_table(pa.table({"id": pa.array([1, 2], pa.int32())}), f"{folder}/part-000.parquet")
pq.write_table(pa.table({"id": [2**40], "score": [0.5]}), f"{folder}/part-001.parquet")
rows = cedar.read_parquet(f"{folder}/part-{{000..001}}.parquet", schema={"id": int, "score": float})
print(rows.schema)
assert [row["score"] for row in rows] == [None, None, 0.5]
