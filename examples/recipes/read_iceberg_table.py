"""Train on one snapshot of an Iceberg table while others write to it. Needs pyiceberg."""

import tempfile

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

import cedar

folder = tempfile.mkdtemp()
catalog = SqlCatalog("local", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
catalog.create_namespace("db")
table = catalog.create_table("db.clicks", pa.schema({"user": pa.int64(), "x": pa.float64()}))
table.append(pa.table({"user": list(range(100)), "x": [0.5] * 100}))

rows = cedar.read_iceberg(table)  # the snapshot that is current now
old = table.current_snapshot().snapshot_id
table.append(pa.table({"user": [999], "x": [0.0]}))
print(rows.explain().splitlines()[1])
assert rows.count() == 100 == cedar.read_iceberg(table, snapshot_id=old).count()
assert cedar.read_iceberg(table).count() == 101
