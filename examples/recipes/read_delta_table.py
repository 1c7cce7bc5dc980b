"""Train on one version of a Delta Lake table while others write to it."""

import tempfile

import deltalake
import pyarrow as pa

import cedar

uri = tempfile.mkdtemp()
deltalake.write_deltalake(uri, pa.table({"user": list(range(100)), "x": [0.5] * 100}))
deltalake.DeltaTable(uri).delete("user < 10")

rows = cedar.read_delta(uri)  # the version that is current now
deltalake.write_deltalake(uri, pa.table({"user": [999], "x": [0.0]}), mode="append")
print(rows.explain().splitlines()[1])
assert rows.count() == 90
assert cedar.read_delta(uri, version=0).count() == 100
