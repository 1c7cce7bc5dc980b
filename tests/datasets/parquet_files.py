"""Parquet files that tests read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def table(n: int = 10, start: int = 0) -> pa.Table:
    ids = range(start, start + n)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "x": pa.array([None if i % 3 == 0 else i / 2 for i in ids], pa.float32()),
            "name": pa.array([f"n{i}" for i in ids]),
            "tags": pa.array([list(range(i % 4)) for i in ids], pa.list_(pa.int64())),
            "kind": pa.array([f"k{i % 2}" for i in ids]).dictionary_encode(),
            "pos": pa.array([{"lat": float(i), "name": str(i)} for i in ids]),
        }
    )


def two_files(folder: Path) -> Path:
    """The folder, with 10 rows in one file, and 5 more in another, in groups of 4."""
    pq.write_table(table(10), folder / "a.parquet", row_group_size=4)
    pq.write_table(table(5, 10), folder / "b.parquet", row_group_size=4)
    return folder
