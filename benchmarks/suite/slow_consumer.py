"""A trap: a training loop that is slower than its input, whatever the plan."""

from __future__ import annotations

import numpy as np

import cedar
from benchmarks.suite.case import read, write
from cedar import col


def data(directory: str, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    write(directory, {"x": rng.random(rows), "label": rng.integers(0, 2, rows)}, 4096)


def squared(x: float) -> float:
    return x * x


def make(directory: str, rows: int) -> cedar.Pipeline:
    return read(directory).map(squared, "x", dtype=float).filter(col("label") == 1).batch(128, last="keep")
