"""filter with a Python function: keeps the rows or batches for which the function returns True."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cedar.core.block import Block
from cedar.core.skip import Skip
from cedar.core.values import describe, plain
from cedar.operators.arguments import key_hashes, row_arguments
from cedar.operators.base import Bound, Effects, Env, Kernel, RowOperator, Schema
from cedar.operators.calls import Call, CallKernel, call_of, fn_name
from cedar.operators.checks import check_columns, check_fn, check_known, check_policy
from cedar.operators.failures import BadResult, Failure, no_rows
from cedar.operators.merging import Mergeable
from cedar.operators.whole_batch import UNIT, call_batch


@dataclass(frozen=True)
class FilterFunction(RowOperator, Mergeable):
    """Keep the rows for which ``fn`` returns True.

    Args:
        fn: a function of the values of ``columns``, or of the row as a dict without ``columns``, that returns a bool.
            After a ``batch``, it receives arrays and decides on the whole batch.
        columns: the columns that ``fn`` receives.
        on_error: the policy for rows on which ``fn`` fails.
        random: True passes ``rng=``, a numpy.random.Generator keyed by seed, epoch, row and operator.
        named: a name that keys the draws, instead of the operator's position in the pipeline.
        timeout: the time limit of one call, in seconds.

    Raises:
        PipelineError: ``fn`` cannot be called with these arguments.

    Examples:
        >>> FilterFunction(lambda age: age > 17, ("age",)).effects().rows
        '1:0..1'
    """

    fn: Callable[..., Any]
    columns: tuple[str, ...] = ()
    on_error: Skip | None = None
    random: bool = False
    named: str | None = None
    timeout: float | None = None
    name = "filter"

    def __post_init__(self) -> None:
        check_columns("filter", self.columns)
        check_fn("filter", self.fn, len(self.columns) or 1, random=self.random)
        check_policy(self.label(), self.on_error, self.timeout)

    def label(self) -> str:
        return f"filter({fn_name(self.fn)})"

    def effects(self) -> Effects:
        reads = frozenset(self.columns) or None
        return Effects(reads, frozenset(), random=self.random, rows="1:0..1", per_row=True)

    def schema(self, *inputs: Schema) -> Schema:
        check_known(self.label(), self.columns, inputs[0])
        return inputs[0]

    def code(self) -> tuple[Any, ...]:
        return (self.fn,)

    group_use = "kept"

    def bind(self, bound: Bound) -> Kernel:
        call = call_of(self.fn, bound, random=self.random, timeout=self.timeout)
        return FilterBatch(call, self.columns) if bound.batched else FilterRows(call, self.columns)


@dataclass(frozen=True)
class FilterRows(CallKernel):
    """The kernel of ``filter`` on rows."""

    call: Call
    columns: tuple[str, ...]
    row_wise: ClassVar[bool] = True

    def __call__(self, block: Block, env: Env) -> Block:
        blame = self.call.blame
        hashes = key_hashes(block, env, self.call.draw) if self.call.random else None
        results, failures = self.call.run(env, row_arguments(block, self.columns, blame), len(block), hashes)
        if set(map(type, results)) - {bool, np.bool_}:
            results = list(plain(results))
            wrong = {i: r for i, r in enumerate(results) if not isinstance(r, (bool, np.bool_)) and i not in failures}
            failures |= {i: _no_bool(self.call, result) for i, result in wrong.items()}
        block = blame.settle(block, env, failures)
        keep = np.array([r for i, r in enumerate(results) if i not in failures] if failures else results, dtype=bool)
        return block if keep.all() else block.filter(keep)


@dataclass(frozen=True)
class FilterBatch(CallKernel):
    """The kernel of ``filter`` after a ``batch``. The function returns one bool per batch; False drops the batch."""

    call: Call
    columns: tuple[str, ...]

    def __call__(self, block: Block, env: Env) -> Block:
        if not len(block):
            return block
        result, failure = call_batch(self.call, self.columns, block, env)
        (result,) = plain([result])
        if failure is None and not isinstance(result, (bool, np.bool_)):
            failure = _no_bool(self.call, result)
        if failure is not None:
            return self.call.blame.settle_whole(block, env, failure, UNIT)
        return block if result else no_rows(block)


def _no_bool(call: Call, result: Any) -> Failure:
    fix = "did it forget to return?" if result is None else "return a comparison, or bool(...) of the value"
    if isinstance(result, np.ndarray):
        fix = "below a batch, one bool decides on the whole batch: .any() or .all(); filter rows before the batch"
    return call.blame.failure(BadResult(f"returned {describe(result)}, not True or False", fix))
