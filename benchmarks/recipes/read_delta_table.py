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
rows = pl.from_arrow(deltalake.DeltaTable(uri, version=current).to_pyarrow_table())
print(current, rows)
assert rows.height == 90
assert deltalake.DeltaTable(uri, version=0).to_pyarrow_table().num_rows == 100
