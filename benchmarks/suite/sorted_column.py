"""A trap: the last days of a log in order of time; statistics of row groups tell which of them to read."""

from __future__ import annotations

import numpy as np

import cedar
from benchmarks.suite.case import read, write
from cedar import col

FLOATS = 8


def data(directory: str, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    urls = [f"https://shop{n % 97}.example/Item/{n}?ref={n % 13}" for n in rng.integers(0, 10**9, rows)]
    columns = {f"x{i}": rng.random(rows) for i in range(FLOATS)}
    write(directory, {"ts": np.arange(rows), "url": urls, **columns}, 8192)


def make(directory: str, rows: int) -> cedar.Pipeline:
    scaled = {f"x{i}": col(f"x{i}").log1p() for i in range(FLOATS)}
    return (
        read(directory)
        .with_columns(**scaled)
        .with_columns(parts=col("url").str.to_lowercase().str.split("/"))
        .with_columns(shop=col("parts").list.get(2), page=col("parts").list.get(4), length=col("url").str.len_chars())
        .filter(col("ts") >= int(rows * 0.95))
        .drop("url", "parts")
        .batch(512, last="keep")
    )
