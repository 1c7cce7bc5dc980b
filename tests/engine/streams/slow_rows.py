"""Rows of which one takes long, and what came of them."""

from __future__ import annotations

import time
from typing import Any

import cedar


def same(x: int) -> int:
    return x


def held_up(x: int) -> int:
    """One row takes long."""
    if x == 70:
        time.sleep(0.3)
    return x


def numbers(n: int = 200) -> cedar.Pipeline:
    return cedar.from_items([{"x": i} for i in range(n)])


def taken(batches: list[Any]) -> list[int]:
    return [x for batch in batches for x in batch["x"]]


SLOW = numbers().map(held_up, "x", dtype=int).batch(10)
