"""A trap: an expensive Python map before a selective filter by expression."""

from __future__ import annotations

import hashlib

import numpy as np

import cedar
from benchmarks.suite.case import Step, composed, read, write
from cedar import col

ROUNDS = 30


def data(directory: str, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    write(directory, {"key": rng.integers(0, 1 << 40, rows), "share": rng.random(rows)}, 4096)


def stretched(key: int) -> int:
    """A key hashed repeatedly."""
    digest = key.to_bytes(8, "little")
    for _ in range(ROUNDS):
        digest = hashlib.sha256(digest).digest()
    return int.from_bytes(digest[:4], "little")


STEPS: dict[str, Step] = {
    "stretched": lambda p: p.map(stretched, "key", into="stretched", dtype=int),
    "modulo": lambda p: p.with_columns(bucket=col("stretched") % 1024),
    "chosen": lambda p: p.filter(col("share") < 0.05),
}


def start(directory: str) -> cedar.Pipeline:
    return read(directory)


def finish(p: cedar.Pipeline) -> cedar.Pipeline:
    return p.select("key", "share", "bucket").batch(64, last="keep")


def make(directory: str, rows: int) -> cedar.Pipeline:
    return composed(start(directory), STEPS, finish)
