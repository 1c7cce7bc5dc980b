"""A trap: a filter of one column written after expensive maps of another."""

from __future__ import annotations

import bz2

import numpy as np

import cedar
from benchmarks.suite.case import read, write

SIZE = 2048


def data(directory: str, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    blobs = [rng.integers(0, 16, SIZE, dtype=np.uint8).tobytes() for _ in range(rows)]
    write(directory, {"blob": blobs, "user": rng.integers(0, 1000, rows), "n": np.arange(rows)}, 512)


def squeeze(blob: bytes) -> bytes:
    return bz2.compress(blob)


def length(blob: bytes) -> int:
    return len(blob)


def chosen(user: int) -> bool:
    return user % 10 == 3


def make(directory: str, rows: int) -> cedar.Pipeline:
    return (
        read(directory)
        .map(squeeze, "blob", into="packed", dtype=bytes)
        .map(length, "packed", into="bytes", dtype=int)
        .filter(chosen, "user")
        .select("n", "user", "bytes")
        .batch(32, last="keep")
    )
