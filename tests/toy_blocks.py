"""Small blocks, and operators run on them as a pipeline would."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from cedar.core.block import Block, concat_blocks
from cedar.core.boundary import as_column
from cedar.core.cursor import Keys
from cedar.core.errors import Site, Skip
from cedar.operators.base import Bound, Env, Kernel, RowOperator

SITE = Site("user.py", 12)


def block(**columns: Any) -> Block:
    """A block of lists (Arrow infers their types) and arrays, row 0 first."""
    built = {n: as_column(v if isinstance(v, (np.ndarray, pa.Array)) else pa.array(v)) for n, v in columns.items()}
    return Block(built, Keys(np.arange(len(next(iter(built.values()))))))


def bind(
    operator: RowOperator, sample: Block, *, batched: bool = False, on_error: Skip | None = None, draw: int = 1
) -> Kernel:
    """The operator's kernel, types taken from ``sample``."""
    policy = operator.on_error or on_error
    head = sample if batched else sample.slice(0, min(64, sample.slots))
    return operator.bind(Bound(3, operator.label(), SITE, draw, policy, batched, lambda: head, None))


def run(
    operator: RowOperator, given: Block, *, sample: Block | None = None, env: Env | None = None, **how: Any
) -> Block:
    """The operator on one block."""
    return bind(operator, given if sample is None else sample, **how)(given, env or Env())


def run_in_parts(kernel: Kernel, given: Block, cuts: Sequence[int]) -> Block:
    """The kernel on the block cut at ``cuts``, the results one after the other."""
    edges = [0, *sorted(cut % (given.slots + 1) for cut in cuts), given.slots]
    parts = [kernel(given.slice(a, b), Env()) for a, b in pairwise(edges)]
    return concat_blocks(parts)


def values(given: Block, name: str) -> list[Any]:
    """A column as a list."""
    column = given.columns[name]
    return list(column.to_pylist() if isinstance(column, pa.Array) else column.tolist())


def same(a: Block, b: Block) -> bool:
    """Whether two blocks hold the same rows, keys and dead slots."""
    columns = list(a.columns) == list(b.columns) and all(repr(values(a, n)) == repr(values(b, n)) for n in a.columns)
    keys = np.array_equal(a.keys.hash(0), b.keys.hash(0))
    return columns and keys and dict(a.dead) == dict(b.dead) and a.types == b.types
