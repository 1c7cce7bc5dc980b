"""polars: read one version of a Delta Lake table while others write to it."""

import tempfile

import deltalake
import polars as pl
import pyarrow as pa

uri = tempfile.mkdtemp()
deltalake.write_deltalake(uri, pa.table({"user": list(range(100)), "x": [0.5] * 100}))
deltalake.DeltaTable(uri).delete("user < 10")

current = deltalake.DeltaTable(uri).version()
deltalake.write_deltalake(uri, pa.table({"user": [999], "x": [0.0]}), mode="append")
rows = pl.read_delta(uri, version=current)
print(current, rows)
assert rows.height == 90
assert pl.read_delta(uri, version=0).height == 100
