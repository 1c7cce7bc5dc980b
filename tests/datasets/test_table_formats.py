"""Tables of Delta Lake, Iceberg and Hudi are recognized by every way to name a folder of their files."""

from __future__ import annotations

import os

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import SourceError

LOGS = {
    "Delta": "_delta_log/00000000000000000000.json",
    "Iceberg": "metadata/00001-5e8f.metadata.json",
    "Hudi": ".hoodie/hoodie.properties",
}
HINTS = {"Delta": "cedar.read_delta", "Iceberg": "cedar.read_iceberg", "Hudi": "Spark"}


def made(root, log):
    """A table with a partition folder and a data folder, and next to it a plain folder."""
    fs, path = fsspec.url_to_fs(root)
    for name in ("table/data", "table/day=1/hour=2", "plain/day=1"):
        fs.makedirs(f"{path}/{name}", exist_ok=True)
        with fs.open(f"{path}/{name}/a.parquet", "wb") as file:
            pq.write_table(pa.table({"x": [1]}), file)
    fs.makedirs(f"{path}/table/{os.path.dirname(log)}", exist_ok=True)
    fs.pipe_file(f"{path}/table/{log}", b"{}")


@pytest.mark.parametrize("kind", LOGS)
@pytest.mark.parametrize("storage", ["local", "file", "memory"])
def test_a_table_is_refused_however_its_folder_is_named(tmp_path, kind, storage):
    root = {"local": str(tmp_path), "file": f"file://{tmp_path}", "memory": f"memory://formats-{kind}"}[storage]
    made(root, LOGS[kind])
    for below in ("table", "table/", "table/data", "table/day=1", "table/*/*.parquet", "table/**/*.parquet",
                  "table/d*", "*/day=1/*/*.parquet"):  # fmt: skip
        for paths in (f"{root}/{below}", [f"{root}/plain", f"{root}/{below}"]):
            with pytest.raises(SourceError, match=f"table is an? {kind} .*deleted") as error:
                cedar.read_parquet(paths).count()
            assert HINTS[kind] in str(error.value)
    assert cedar.read_parquet(f"{root}/plain").count() == 1
    assert cedar.read_parquet(f"{root}/plain/*/*.parquet").count() == 1
    assert cedar.read_parquet([f"{root}/table/data/a.parquet", f"{root}/plain/day=1/a.parquet"]).count() == 2  # named


def test_a_folder_of_metadata_is_no_table(tmp_path):
    made(str(tmp_path), "metadata/columns.json")
    assert cedar.read_parquet(str(tmp_path / "table/data")).count() == 1


def test_a_link_to_a_folder_of_a_table_is_refused(tmp_path):
    made(str(tmp_path), LOGS["Delta"])
    os.symlink(tmp_path / "table/day=1", tmp_path / "link")
    with pytest.raises(SourceError, match="a Delta Lake table"):
        cedar.read_parquet(str(tmp_path / "link")).count()
