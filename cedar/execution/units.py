"""Units: what the caller gets for the pieces of an epoch, counted and within budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cedar.block import Block
from cedar.execution.account import Account
from cedar.execution.chain import Step
from cedar.execution.formats import handed_over
from cedar.execution.options import Options
from cedar.execution.runner import Runner
from cedar.operators.base import Env
from cedar.stream import Piece

NOTHING = object()  # rows were skipped, and there is nothing to hand over


@dataclass(frozen=True)
class Units:
    """Hands over rows, batches or blocks.

    Args:
        account: counts rows, and those that were skipped.
        options: of the loader.
        batched: the unit is the batch.
        finish: the steps that bring a batch into its format, where the tasks have not run them.
    """

    account: Account
    options: Options
    batched: bool
    finish: tuple[Step, ...]

    def of(self, piece: Piece, runner: Runner, total: float | None) -> Iterator[tuple[int, Any]]:
        """(unit, what the caller gets) for each unit of a piece."""
        block = piece.rows.gather()
        if self.batched or self.options.as_blocks:
            self.account.add(block, range(block.slots), block.slots - len(block.dead), total)
            refilled = block.dead and len(block.dead) == block.slots and all(w.refill for w in block.dead.values())
            yield piece.units - 1, NOTHING if refilled else self.value(block, runner)
            return
        counted = 0
        for slot, row in zip(block.live_slots().tolist(), block.rows(), strict=True):
            self.account.add(block, range(counted, slot + 1), 1, total)
            counted = slot + 1
            yield slot, row
        if counted < block.slots:  # rows skipped after the last one
            self.account.add(block, range(counted, block.slots), 0, total)
            yield block.slots - 1, NOTHING

    def value(self, block: Block, runner: Runner) -> Any:
        """A batch, or a block for a sink, as the caller gets it."""
        if self.options.as_blocks:
            return block
        if not runner.local:
            for step in self.finish:
                block = step.kernel(block, Env())
        self.account.grouped(block.columns)
        return handed_over(block.columns, self.options.format, self.options.device)
