"""A trap: a table of 120 columns, of which the result needs three."""

from __future__ import annotations

import numpy as np

import cedar
from benchmarks.suite.case import read, write
from cedar import col

COLUMNS = 120
FILE = 100_000  # rows


def data(directory: str, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    distinct = min(rows, FILE)
    columns = {f"c{i}": rng.normal(size=distinct).round(3) for i in range(COLUMNS)}
    write(directory, columns, 10_000, copies=rows // distinct)


def make(directory: str, rows: int) -> cedar.Pipeline:
    return (
        read(directory)
        .with_columns(product=col("c3") * col("c7"), ratio=col("c100") / (col("c101").abs() + 1))
        .select("product", "c11")
        .batch(4096, last="keep")
    )
