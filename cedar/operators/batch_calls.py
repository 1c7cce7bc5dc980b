"""The kernel of ``map`` after a ``batch``, which calls a function once per batch, with arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from cedar.core.block import Block
from cedar.core.columns import Column, objects, writeable
from cedar.core.errors import VALUE
from cedar.core.jagged import each
from cedar.operators.base import Bound, Env
from cedar.operators.calls import Call, CallKernel, batch_arguments, key_hashes
from cedar.operators.failures import BadResult, Failure, first_row
from cedar.operators.outputs import NO_ROWS, SAMPLED, Form, Outputs, Types, UnequalLengths, fix_outputs, types_of_arrays

UNIT = "batch starting at row"


def call_batch(
    call: Call, columns: tuple[str, ...], block: Block, env: Env, rows: bool = False
) -> tuple[Any, Failure | None]:
    """Call a function on a batch's arrays or, with ``rows``, on its list of rows; return (result, failure)."""
    given = [list(block.rows())] if rows else batch_arguments(block, columns, call.blame)
    hashes = key_hashes(block, env, call.draw)[:1] if call.random else None
    results, failures = call.run(env, [[argument] for argument in given], 1, hashes)
    return (None, failures[0]) if failures else (results[0], None)


def block_with_value(block: Block, value: Any) -> Block:
    """Return a block that contains one value for a whole batch instead of columns, and the keys of the batch's rows."""
    return Block({VALUE: objects([value])}, block.keys, block.dead, aligned=False)


def delivered(values: Any, tensors: bool) -> list[Any]:
    """Prepare batch values for the caller: make arrays writable, and convert them to torch tensors if ``tensors``."""
    from cedar.core.convert import tensor_of, torch_holds

    def own(array: Any) -> Any:
        if not isinstance(array, np.ndarray):
            return array
        array = writeable(array)
        return tensor_of(array) if tensors and torch_holds(array.dtype) else array

    return [each(value, own) for value in values]


@dataclass(frozen=True)
class MapToValue(CallKernel):
    """The kernel of a function that is called once per batch and whose results are delivered unchanged.

    Args:
        call: the function.
        rows: True passes a list of the batch's rows; False passes arrays by column, or the previous function's result.
    """

    call: Call
    rows: bool = False

    def __call__(self, block: Block, env: Env) -> Block:
        nothing = Block({VALUE: objects([])}, block.keys, block.dead, aligned=False)
        if not len(block):
            return nothing
        result, failure = call_batch(self.call, (), block, env, self.rows)
        if failure is None and result is not None:
            return block_with_value(block, result)
        if failure is not None and self.rows and isinstance(failure.cause, TypeError | KeyError | AttributeError):
            given = "collate gets each row as a dict of Python values and ndarrays, not as a tuple or tensors"
            failure = replace(failure, fix=f"{given}; {failure.fix}")
        missing = BadResult("returned None for a batch", "did it forget to return?")
        settled = self.call.blame.settle_whole(block, env, failure or self.call.blame.failure(missing), UNIT)
        return replace(nothing, keys=settled.keys, dead=settled.dead)


class _NoColumns(Exception):
    """A function of the whole batch returned something other than a dict of columns."""


def bind_batch(
    call: Call, columns: tuple[str, ...], form: Form, into: tuple[str, ...], declared: Types, bound: Bound
) -> MapBatch | MapToValue:
    """Return the kernel of ``map`` on batches, with types that are declared or inferred from a call on the sample.

    If a function of the whole batch returns something other than a dict of columns on the sample, its results are
    delivered unchanged.

    Raises:
        RowError: the call on the sample failed, and the types are not all declared.
    """

    def observe() -> Types:
        block = bound.sample()
        if not len(block):
            return dict.fromkeys(into, (pa.null(), NO_ROWS))
        result, failure = call_batch(call, columns, block, bound.env)
        if failure is not None:
            if form == "dict" and declared:
                return {}
            fix = f"{failure.fix}; where it needs a full batch, give dtype=, so that it is not tried on {SAMPLED}"
            raise call.blame.error(replace(failure, fix=fix), first_row(block, UNIT))
        may_be_value = form == "dict" and not declared
        if may_be_value and isinstance(result, dict) and not all(isinstance(name, str) for name in result):
            raise _NoColumns
        try:
            return types_of_arrays(call.blame, result, form, into, declared)
        except BadResult as error:
            if may_be_value and result is not None:
                raise _NoColumns from error
            raise call.blame.error(call.blame.failure(error), first_row(block, UNIT)) from error

    try:
        return MapBatch(call, columns, fix_outputs(call.blame, form, into, declared, observe))
    except _NoColumns:
        return MapToValue(call)


@dataclass(frozen=True)
class MapBatch(CallKernel):
    """The kernel of ``map`` after a ``batch``: one call per batch. A function of the whole batch may resize it."""

    call: Call
    columns: tuple[str, ...]
    outputs: Outputs

    def __call__(self, block: Block, env: Env) -> Block:
        rows, whole = len(block), self.outputs.form == "dict"
        if not rows:
            return self._with(block, self.outputs.empty())
        result, failure = call_batch(self.call, self.columns, block, env)
        if failure is None:
            try:
                written = self.outputs.arrays(result)
                count = len(next(iter(written.values()), ())) if written else rows
                if count != rows and not whole:
                    raise BadResult(
                        f"returned {count} rows for a batch of {rows}",
                        "return one entry per row; a function of the whole batch (no columns named) may resize it",
                    )
            except BadResult as error:
                if whole and isinstance(error, UnequalLengths):  # column lengths in the sample were equal by chance
                    return block_with_value(block, result)
                failure = self.call.blame.failure(error)
            else:
                return replace(self._with(block, written), aligned=block.aligned and count == rows)
        return self._with(self.call.blame.settle_whole(block, env, failure, UNIT), self.outputs.empty())

    def _with(self, block: Block, columns: dict[str, Column]) -> Block:
        return block.only_columns(columns) if self.outputs.form == "dict" else block.with_columns(columns)
