"""Failures: the handling of rows on which a function fails or returns an invalid result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from cedar.core import columns
from cedar.core.block import Block, Skipped
from cedar.core.errors import PipelineError, RowError, RowRef, Site, Skip
from cedar.core.printable import redact
from cedar.operators.base import Bound, Env
from cedar.operators.marks import BadRow, BlockKilled

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a row failed: the message, a shorter message for the quarantine, a fix, and the exception."""

    what: str
    short: str
    fix: str
    cause: BaseException | None = None


class BadResult(Exception):
    """A user's function returned a result that no column can contain; ``fix`` describes what to return."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message, fix)
        self.message = message
        self.fix = fix


@dataclass(frozen=True)
class ErrorContext:
    """The operator to which failing rows are attributed: its ordinal, its label, the user's line and the policy."""

    index: int
    label: str
    site: Site | None = None
    on_error: Skip | None = None

    @staticmethod
    def at(bound: Bound) -> ErrorContext:
        """Return the context of the operator at a position of the pipeline."""
        return ErrorContext(bound.index, bound.label, bound.site, bound.on_error)

    def stops(self, env: Env) -> bool:
        """Return True if the first failure ends the run."""
        return self.on_error is None and not env.sampling

    def failure(self, error: BaseException) -> Failure:
        """Return the failure for an exception that the user's function raised, or for an invalid result."""
        if isinstance(error, BadResult):
            return Failure(f"{self.label} {error.message}", error.message, error.fix, None)
        kind, text = type(error).__name__, error_text(error)
        short = f"{kind}: {text}" if text else kind
        shared = kind == "ValueError" and text.endswith("read-only")
        fix = "copy the array before changing it, since others share its memory" if shared else "fix the function"
        if isinstance(error, BlockKilled):
            fix += ", or give on_error=cedar.Skip(blocks=True) to drop such blocks and continue"
        elif self.on_error is None:
            fix += ", or give on_error=cedar.Skip(...), here or to the loader, to drop such rows and continue"
        return Failure(f"{self.label} failed: {short}", short, fix, error)

    def error(self, failure: Failure, row: RowRef | None) -> RowError:
        """Return the error that ends the run, with its cause attached."""
        error = RowError(failure.what, site=self.site, row=row, done="stopped at this row", fix=failure.fix)
        error.__cause__ = failure.cause
        return error

    def refusal(self, problem: str, *, fix: str | None = None) -> PipelineError:
        """Return the error for an operator that cannot run, whatever the rows are."""
        return PipelineError(f"{self.label}: {problem}", site=self.site, fix=fix)

    def settle(self, block: Block, env: Env, failures: Mapping[int, Failure]) -> Block:
        """Return the block without the failed live rows, whose slots (row positions) are marked as skipped.

        Raises:
            RowError: the operator has no policy; the error names the first failed row.
        """
        return settle_each(block, env, {row: (self, failure) for row, failure in failures.items()})

    def settle_crash(self, block: Block, env: Env, bad: BadRow) -> Block:
        """Return the block without its rows, because every worker process that ran them crashed.

        Raises:
            RowError: the policy does not drop such rows.
        """
        keys = block.live_keys()
        failure = self.failure(bad.error(int(keys.row[0]), int(keys.row[-1])))
        if bad.block and not env.sampling and (self.on_error is None or not self.on_error.blocks):
            error = self.error(failure, first_row(block, "rows starting at"))
            error.done = "stopped at this block"
            raise error
        return self.settle(block, env, dict.fromkeys(range(len(block)), failure))

    def skipped(self, failure: Failure) -> Skipped:
        """Return the record of a skipped row."""
        refill = self.on_error is not None and self.on_error.refill
        return Skipped(self.index, self.label, redact(failure.short), refill)

    def settle_whole(self, block: Block, env: Env, failure: Failure, unit: str) -> Block:
        """Drop a group of rows on which one call failed; each row is recorded as skipped.

        Raises:
            RowError: the operator has no policy; the error names the group (``unit``) and its first row.
        """
        if self.stops(env):
            raise self.error(failure, first_row(block, unit))
        if env.sampling:
            return no_rows(block)
        skipped = self.skipped(failure)
        dead = {slot: block.dead.get(slot, skipped) for slot in range(block.slots)}
        return replace(no_rows(block), keys=block.keys, dead=dead)


def settle_each(block: Block, env: Env, failures: Mapping[int, tuple[ErrorContext, Failure]]) -> Block:
    """Return the block without the failed live rows, which are recorded as skipped by the operators that failed.

    Raises:
        RowError: an operator has no policy, or a function resized the batch, so that its rows have no keys.
    """
    if not failures:
        return block
    ending = [row for row, (blame, _) in failures.items() if blame.stops(env) or not block.aligned]
    if ending:
        blame, failure = failures[min(ending)]
        raise blame.error(failure, block.live_keys().ref(min(ending)) if block.aligned else None)
    if env.sampling:
        keep = np.ones(len(block), dtype=bool)
        keep[list(failures)] = False
        return block.filter(keep)
    return block.kill({row: blame.skipped(failure) for row, (blame, failure) in failures.items()})


def no_rows(block: Block) -> Block:
    """Return an empty block with the columns of ``block``."""
    empty = {name: columns.cut(column, 0, 0) for name, column in block.columns.items()}
    return Block(empty, block.keys.take(slice(0, 0)))


def first_row(block: Block, unit: str) -> RowRef | None:
    """Return a reference to a group's first live row; messages describe the group as ``unit``."""
    slots = block.live_slots()
    if not block.slots:
        return None
    return replace(block.keys.ref(int(slots[0]) if len(slots) else 0), unit=unit)


def error_text(error: BaseException) -> str:
    """Return the message of an exception, or a placeholder if its ``__str__`` fails."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an error in __str__ must not hide the original error
        return "(its text cannot be shown)"


def without(values: Iterable[T], failures: Mapping[int, Failure]) -> list[T]:
    """Return the values whose index is not in ``failures``."""
    return [value for i, value in enumerate(values) if i not in failures] if failures else list(values)
