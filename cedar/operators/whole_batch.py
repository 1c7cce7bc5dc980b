"""Batch values: results for whole batches that are not dicts of columns. The loader delivers them unchanged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cedar.core.block import Block
from cedar.core.columns import objects, writeable
from cedar.core.errors import VALUE
from cedar.core.jagged import each
from cedar.operators.arguments import batch_arguments, key_hashes
from cedar.operators.base import Env
from cedar.operators.calls import Call, CallKernel
from cedar.operators.failures import BadResult, Failure

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

    def own(array: Any) -> Any:
        if not isinstance(array, np.ndarray):
            return array
        array = writeable(array)
        if not tensors or array.dtype.kind not in "biufc":
            return array
        import torch

        return torch.from_numpy(array)

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
        missing = BadResult("returned None for a batch", "did it forget to return?")
        settled = self.call.blame.settle_whole(block, env, failure or self.call.blame.failure(missing), UNIT)
        return replace(nothing, keys=settled.keys, dead=settled.dead)
