"""A log that the tests of plans read."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar


@pytest.fixture
def log(tmp_path, monkeypatch):
    """Parquet files at a relative place, so that texts are the same everywhere."""
    monkeypatch.chdir(tmp_path)
    table = pa.table({name: pa.array(range(100), pa.int64()) for name in ("label", "x", "y")})
    (tmp_path / "log").mkdir()
    pq.write_table(table, tmp_path / "log" / "a.parquet")
    return cedar.read_parquet("log")
