"""Audits: compare the rows of a plan with those of the pipeline as written, bit for bit, in a share of the time."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import fields
from functools import cached_property

import numpy as np

from cedar.core.block import Block, concat_blocks
from cedar.core.columns import OBJECT
from cedar.core.compare import column_difference
from cedar.core.cursor import Keys
from cedar.core.stream import PENDING, Flow, Piece
from cedar.engine.binding import Binding
from cedar.plan.graph import source_of

_SHARE = 0.01  # of the time
_PAUSE = 0.001  # seconds between two checks whether an audit's result is ready


# ---- audits in a run -------------------------------------------------------------------------------------------------


class AuditBudget:
    """Decides when an audit is due.

    Args:
        binding: the bound operators of the pipeline as written.
    """

    def __init__(self, binding: Binding) -> None:
        self.share = _SHARE  # fraction of the time for audits; 1 or more audits every piece
        self._binding = binding
        self.restart()

    def restart(self) -> None:
        """Begin again, as the streams of a plan are opened."""
        self._opened = time.perf_counter()
        self._spent = self._next = 0.0  # seconds of audits, and estimated seconds of the next one

    def due(self, opening: float) -> bool:
        """Whether to audit the next piece.

        Args:
            opening: seconds until the first rows arrived, a lower bound for the duration of an audit.
        """
        if self.share >= 1:
            return self._possible
        enough = self.seconds >= max(self._next, opening)
        return enough and self._possible and not self._has_streams  # streaming splits seek slowly

    @property
    def seconds(self) -> float:
        """Seconds that the next audit may take at most."""
        return math.inf if self.share >= 1 else (time.perf_counter() - self._opened) * self.share - self._spent

    def record(self, seconds: float, *, done: bool) -> None:
        """Record an audit. If it was stopped for taking too long, the next one is expected to take twice as long."""
        self._spent += seconds
        self._next = seconds if done else 2 * seconds

    @cached_property
    def _has_streams(self) -> bool:
        return any(self._binding.splits(source).streams for source in self._binding.sources)

    @cached_property
    def _possible(self) -> bool:
        """Whether rows can be read again unchanged. One-pass iterators and objects that functions may modify cannot."""
        sources = [(node, source_of(node)) for node in self._binding.sources]
        if any(source.one_pass for _, source in sources):
            return False
        return not any(
            source.holds_objects and OBJECT in self._binding.types(node).values() for node, source in sources
        )


def audited(piece: Piece, flow: Flow, limit: float) -> tuple[list[Piece], str | None] | None:
    """Compare a piece with the units of a flow of the pipeline as written, and close the flow.

    Args:
        piece: a piece that a plan computed.
        flow: delivers the same units as written.
        limit: maximum seconds; inf waits for the units.

    Returns:
        The pieces as written, and a description of the first difference (None if equal); None if the time was up.
    """
    began = time.perf_counter()
    as_written: list[Piece] = []
    try:
        while sum(each.units for each in as_written) < piece.units:
            each = flow.pull(limit == math.inf)
            if each is PENDING and time.perf_counter() - began > limit:
                return None
            if each is PENDING:
                time.sleep(_PAUSE)
            elif each is None:
                break
            elif each.units:
                as_written.append(each)
    finally:
        flow.close()
    units = [each.slice(0, each.units) for each in as_written]
    over = sum(each.units for each in units) - piece.units
    if over > 0:
        units[-1] = units[-1].slice(0, units[-1].units - over)
    return as_written, compared([piece.rows.gather()], [each.rows.gather() for each in units], batched=piece.batch)


# ---- comparison ------------------------------------------------------------------------------------------------------


def compared(done: Sequence[Block], written: Sequence[Block], batched: bool) -> str | None:
    """Describe the first difference between two runs; None if equal. Block boundaries matter only if ``batched``."""
    if done and written and list(done[0].columns) != list(written[0].columns):
        return f"columns {list(done[0].columns)}, {list(written[0].columns)} as written"
    if not batched:
        return difference(done, written)
    if len(done) != len(written):
        return f"{len(done)} batch(es) in the plan, {len(written)} as written"
    for number, (ours, theirs) in enumerate(zip(done, written, strict=True)):
        mismatch = difference([ours], [theirs])
        if mismatch is not None:
            return f"batch {number}: {mismatch}"
    return None


def difference(done: Sequence[Block], written: Sequence[Block]) -> str | None:
    """Describe the first difference between a plan's rows and those of the pipeline as written; None if equal.

    The order of columns and the boundaries between blocks may differ.
    """
    ours, theirs = _joined(done), _joined(written)
    if ours is None or theirs is None:
        some = ours or theirs
        return None if some is None else f"{some.slots} row(s) on one side, none on the other"
    if ours.slots != theirs.slots:
        return f"{ours.slots} row(s) in the plan, {theirs.slots} as written"
    if not _same_keys(ours.keys, theirs.keys):
        return "other rows, or in another order"
    if ours.dead != theirs.dead:
        return "other rows were skipped"
    if set(ours.columns) != set(theirs.columns):
        return f"columns {sorted(set(ours.columns) ^ set(theirs.columns))} are on one side only"
    for name, column in ours.columns.items():
        why = column_difference(column, theirs.columns[name])
        if why is not None:
            return f"column {name!r}: {why}"
    return None


def _joined(blocks: Sequence[Block]) -> Block | None:
    blocks = [block for block in blocks if block.slots]
    return concat_blocks(blocks) if blocks else None


def _same_keys(ours: Keys, theirs: Keys) -> bool:
    count = len(ours)
    if count != len(theirs):
        return False
    for field in fields(Keys):
        mine, other = getattr(ours, field.name), getattr(theirs, field.name)
        if mine is None or other is None:
            if mine is not other:
                return False
        elif not np.array_equal(np.broadcast_to(mine, count), np.broadcast_to(other, count)):
            return False
    return True
