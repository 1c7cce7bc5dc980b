"""A trap: nothing to gain. One column, one function, which threads share as they are."""

from __future__ import annotations

import hashlib

import numpy as np

import cedar
from benchmarks.suite.case import read, write

SIZE = 1 << 14


def data(directory: str, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    write(directory, {"blob": [rng.bytes(SIZE) for _ in range(rows)]}, 64)


def digest(blob: bytes) -> bytes:
    """Releases Python's lock."""
    for _ in range(16):
        found = hashlib.sha3_512(blob).digest()
    return found


def make(directory: str, rows: int) -> cedar.Pipeline:
    return read(directory).map(digest, "blob", dtype=bytes).batch(32, last="keep")
