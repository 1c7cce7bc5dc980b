"""What operators do to blocks, for whoever looks at a run: rows and bytes in and out, and the time it took."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from cedar.core.block import Block
from cedar.core.columns import Column, nbytes
from cedar.core.observation import Observation

if TYPE_CHECKING:
    from cedar.tasks.chain import Timing

Sizes: TypeAlias = dict[int, tuple[Column, int]]  # by the id of the column, which is held, so that no other gets it


def observe(
    timing: Timing, operator: int, before: Block, after: Block, wall: float, cpu: float, sizes: Sizes | None = None
) -> None:
    """Add what an operator did to one block; ``sizes`` are those of the columns of ``before``, then of ``after``."""
    known = {} if sizes is None else sizes
    inside, outside = _sizes(before, known), _sizes(after, known)
    written = {
        name: outside[name]
        for name, column in after.columns.items()
        if name not in before.columns or (len(before) == len(after) and before.columns[name] is not column)
    }
    seen = Observation(len(before), len(after), _bytes(before, inside), _bytes(after, outside), wall, cpu, written)
    timing.seen[operator] = timing.seen[operator] + seen if operator in timing.seen else seen
    if sizes is not None:
        sizes.clear()
        sizes.update({id(column): (column, outside[name]) for name, column in after.columns.items()})


def _sizes(block: Block, known: Sizes) -> dict[str, int]:
    """The bytes of each column; those of columns that pass many operators are worked out once."""
    return {name: known[id(c)][1] if id(c) in known else nbytes(c) for name, c in block.columns.items()}


def _bytes(block: Block, sizes: dict[str, int]) -> int:
    return sum(sizes.values()) + 8 * block.slots
