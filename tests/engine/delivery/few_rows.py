"""A few rows, for tests of what a loader delivers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import pyarrow as pa

import cedar


def rows(n: int = 20) -> cedar.Pipeline:
    return cedar.from_arrow(
        pa.table({"x": pa.array(range(n), pa.int64()), "l": [list(range(i % 3)) for i in range(n)]})
    )


def in_batches(n: int, size: int = 2, last: Literal["drop", "keep", "pad"] = "drop") -> cedar.Pipeline:
    return cedar.from_items([{"x": i} for i in range(n)]).batch(size, last=last)


def xs(batches: Iterable[Any]) -> list[list[int]]:
    return [batch["x"].tolist() for batch in batches]
