"""A trap: a map in pure Python, which threads cannot share."""

from __future__ import annotations

import numpy as np

import cedar
from benchmarks.suite.case import read, write


def data(directory: str, rows: int, seed: int) -> None:
    write(directory, {"n": np.random.default_rng(seed).integers(1, 10**6, rows)}, 2048)


def collatz(n: int) -> int:
    """Steps to 1."""
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


def make(directory: str, rows: int) -> cedar.Pipeline:
    return read(directory).map(collatz, "n", into="steps", dtype=int).batch(128, last="keep")
