"""A trap: storage that answers slowly, and light work on what it gives."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import cedar
from cedar import col

ROWS = 1000  # of a split
LATENCY = 0.08  # seconds until a split is there


@dataclass(frozen=True)
class Slow:
    """Splits that are waited for."""

    rows: int

    def splits(self) -> list[int]:
        return list(range(0, self.rows, ROWS))

    def read(self, start: int) -> Iterator[dict[str, Any]]:
        time.sleep(LATENCY)
        numbers = np.arange(start, min(start + ROWS, self.rows))
        yield {"n": numbers, "x": np.sin(numbers)}


def data(directory: str, rows: int, seed: int) -> None:
    """Made while it is read."""


def scaled(x: float) -> float:
    return round(x * 100, 3)


def make(directory: str, rows: int) -> cedar.Pipeline:
    source = cedar.from_source(Slow(rows))
    return source.map(scaled, "x", dtype=float).filter(col("n") % 3 != 0).batch(256, last="keep")
