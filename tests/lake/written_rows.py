"""Rows for files of formats whose library makes the file when its last piece is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import cedar

VALUES = pa.table(
    {
        "id": pa.array([2**63 - 1, None, -5]),
        "f": pa.array([0.1, float("nan"), None]),
        "s": pa.array(["aé", "", None]),
        "b": pa.array([b"\0", b"", None]),
        "l": pa.array([[1, 2], [], None]),
        "d": pa.array([{"a": 1, "b": [0.5]}, {"a": None, "b": []}, {"a": 2, "b": None}]),
        "pair": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int16(), 2)),
        "t": pa.array([1, None, 3], pa.timestamp("us", "UTC")),
    }
)


def rows(n: int) -> cedar.Pipeline:
    return cedar.from_arrow(pa.table({"id": range(n), "k": [f"k{i % 3}" for i in range(n)], "l": [[n, 1]] * n}))


def stopping(folder: Path) -> cedar.Pipeline:
    """300 rows, of which one cannot be made until there is a file "on" in the folder."""

    def stops(i: Any) -> Any:
        if i == 250 and not (folder / "on").exists():
            raise ValueError("not yet")
        return i

    pq.write_table(rows(300).to_arrow(), folder / "in.parquet", row_group_size=50)
    return cedar.read_parquet(folder / "in.parquet").map(stops, "id", dtype=int)
