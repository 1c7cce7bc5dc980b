"""Rows of which some fail, under a policy that skips them."""

from __future__ import annotations

import pyarrow as pa

import cedar
from cedar import Skip


def picky(x: int) -> int:
    if x % 10 == 3:
        raise ValueError(f"no {x}")
    return x


def failing(policy: Skip, n: int = 50) -> cedar.Pipeline:
    return cedar.from_arrow(pa.table({"x": pa.array(range(n), pa.int64())})).map(picky, "x", dtype=int, on_error=policy)


def flat(batches: list[list[int]]) -> list[int]:
    return [x for batch in batches for x in batch]


BAD = [3, 13, 23, 33, 43]
