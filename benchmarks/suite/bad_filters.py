"""A trap: filters in a bad order, the expensive one that keeps nearly everything first."""

from __future__ import annotations

import hashlib
import re

import numpy as np

import cedar
from benchmarks.suite.case import Step, composed, read, write
from cedar import col

_PAIR = re.compile("(..).*\\1")


def data(directory: str, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    texts = [hashlib.sha256(str(n).encode()).hexdigest() for n in rng.integers(0, 1 << 40, rows)]
    write(directory, {"text": texts, "a": rng.random(rows), "b": rng.integers(0, 100, rows)}, 8192)


def slow(text: str) -> bool:
    """Keeps 19 of 20."""
    digest = text.encode()
    for _ in range(20):
        digest = hashlib.sha256(digest).digest()
    return digest[0] >= 13


def middling(text: str) -> bool:
    """Keeps most: two letters that come again."""
    return _PAIR.search(text) is not None


STEPS: dict[str, Step] = {
    "slow": lambda p: p.filter(slow, "text"),
    "middling": lambda p: p.filter(middling, "text"),
    "half": lambda p: p.filter(col("a") < 0.5),
    "few": lambda p: p.filter(col("b") < 8),
}


def start(directory: str) -> cedar.Pipeline:
    return read(directory)


def finish(p: cedar.Pipeline) -> cedar.Pipeline:
    return p.batch(64, last="keep")


def make(directory: str, rows: int) -> cedar.Pipeline:
    return composed(start(directory), STEPS, finish)
