"""Units: convert the pieces of an epoch to what the caller receives, and check the limits on skipped rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cedar.core.block import Block
from cedar.core.columns import writeable
from cedar.core.errors import CedarError
from cedar.core.stream import Count
from cedar.engine.account import DeliveryCounter
from cedar.engine.delivery.formats import Mover, in_form, make_mover
from cedar.engine.delivery.options import Options
from cedar.engine.epoch import DataEpoch
from cedar.engine.runner import Runner
from cedar.operators.base import Env
from cedar.tasks.chain import KernelStep


@dataclass(frozen=True)
class Units:
    """Delivers rows, batches or blocks.

    Args:
        account: counts delivered and skipped rows.
        options: the loader's options.
        batched: whether units are batches.
        finish: steps that convert a batch to its format; run in this process if tasks ran in other processes.
        rows: number of rows in a batch.
        leave: called immediately before a value is yielded, after which the caller may take arbitrarily long.
    """

    account: DeliveryCounter
    options: Options
    batched: bool
    finish: tuple[KernelStep, ...]
    rows: int
    leave: Callable[[], None] = lambda: None

    def total(self, units: Count) -> float | None:
        """Return the total rows of an epoch of which ``units`` units remain; None if unknown or infinite."""
        if units is None or units == math.inf:
            return None
        return float(units * (self.rows if self.batched else 1)) + self.account.budgets.seen

    def values(self, data: DataEpoch, runner: Runner, total: float | None) -> Generator[Any]:
        """Yield the units of an epoch of the data as the caller receives them, and record each in ``data`` first."""
        whole = self.batched or self.options.as_blocks
        for origin, piece in data.pieces():
            block = piece.rows.gather()
            if whole:
                self.count(block, total)
                value = None if block.dead and replaced(block) else self.value(block, runner)
                units = iter([(piece.units - 1, value)])
            else:
                units = self._rows(block, total)
            for unit, value in units:
                if value is not None:
                    self.leave()
                data.delivered(origin, piece, unit)
                if value is not None:
                    yield value

    def _rows(self, block: Block, total: float | None) -> Iterator[tuple[int, Any]]:
        """Yield (unit, row) for each row of a piece, and (last unit, None) if its last rows were skipped."""
        counted = 0
        block = block.only_columns({name: writeable(column) for name, column in block.columns.items()})
        for slot, row in zip(block.live_slots().tolist(), block.rows(), strict=True):
            self.account.add(block, range(counted, slot + 1), 1, total)
            counted = slot + 1
            yield slot, tuple(row.values()) if self.options.format == "tuple" else row
        if counted < block.slots:  # there are skipped rows after the last row that was not skipped
            self.account.add(block, range(counted, block.slots), 0, total)
            yield block.slots - 1, None

    def count(self, block: Block, total: float | None) -> None:
        """Count a whole block that is about to be delivered; raise if too many rows were skipped."""
        slots = len(block.keys.row)
        self.account.add(block, range(slots), slots - len(block.dead), total)

    def value(self, block: Block, runner: Runner) -> Any:
        """Return a batch as the caller receives it, or the block itself for a sink."""
        if self.options.as_blocks:
            return block
        columns = block.columns if runner.local else self.columns(block, runner)
        self.account.grouped(columns)
        return in_form(columns, self.options.format)

    def mover(self) -> Mover | None:
        """Return what copies batches to the device; None if units stay in this process's memory."""
        return make_mover(self.options.device) if self.batched and self.options.device is not None else None

    def again(self, block: Block, runner: Runner) -> Any:
        """Return a unit that was computed again as the caller receives it; None if its only row was skipped."""
        mover = self.mover()
        if mover is None:
            return self.value(block, runner) if self.batched else next(block.rows(), None)
        return in_form(mover.end(mover.begin(self.columns(block, runner))), self.options.format)

    def columns(self, block: Block, runner: Runner) -> dict[str, Any]:
        """Return the columns of a batch in the loader's format. Updates no counters, so it may run in any thread."""
        if not runner.local:
            for step in self.finish:
                block = step.kernel(block, Env())
        return block.columns


def replaced(block: Block) -> bool:
    """Whether all rows of a block were skipped, and other rows replace them."""
    return bool(block.dead) and len(block.dead) == block.slots and all(w.refill for w in block.dead.values())


def units_left(data: DataEpoch) -> Count:
    """Return the number of remaining units; None if it cannot be computed from metadata."""
    with suppress(CedarError):  # for example, a sample row made a function fail
        return data.units()
    return None
