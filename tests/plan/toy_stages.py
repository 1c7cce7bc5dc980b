"""Pipelines that are lowered manually, for tests of physical plans."""

from __future__ import annotations

import cedar
from cedar import col


def numbers(rows: int = 40) -> cedar.Pipeline:
    return cedar.from_items([{"x": i, "y": i % 7} for i in range(rows)])


def plus(x: int) -> int:
    return x + 1


def all_kinds() -> cedar.Pipeline:
    """A pipeline on which every mutant shows."""
    ones = cedar.concat(numbers(), numbers()).filter(col("x") > 1).shuffle(window=10)
    ones = ones.map(plus, "x", dtype=int).with_columns(z=col("x") + 1)
    two = ones.map_batches(lambda c: {"z": c["z"]}, "z", format="numpy", size=3).filter(col("z") > 4)
    return two.take(30).shuffle(seed=1, window=7).batch(4, last="pad").with_columns(w=col("x")).with_columns(v=col("w"))
