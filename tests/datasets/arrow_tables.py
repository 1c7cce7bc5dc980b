"""A table of Arrow that tests write and read."""

from __future__ import annotations

import pyarrow as pa


def table(n: int, start: int = 0) -> pa.Table:
    ids = range(start, start + n)
    return pa.table(
        {
            "name": pa.array([f"n{i}" for i in ids], pa.string()),
            "id": pa.array(ids, pa.int64()),
            "tags": pa.array([list(range(i % 3)) for i in ids], pa.list_(pa.int32())),
            "kind": pa.array(["a" if i % 2 else None for i in ids]).dictionary_encode(),
        }
    )
