"""Rows of numbers and lists."""

from __future__ import annotations

import pyarrow as pa

import cedar


def rows(n: int = 20) -> cedar.Pipeline:
    return cedar.from_arrow(
        pa.table({"x": pa.array(range(n), pa.int64()), "l": [list(range(i % 3)) for i in range(n)]})
    )
