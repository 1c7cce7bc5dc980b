"""map and filter: call a Python function on each row, or on each batch after a ``batch``.

``filter`` keeps the rows or batches for which the function returns True.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from cedar.core import buffers
from cedar.core.block import Block
from cedar.core.buffers import BatchPlace
from cedar.core.columns import OBJECT, UNKNOWN, Column, TensorType
from cedar.core.errors import PipelineError, Skip, require_columns
from cedar.core.values import describe, plain
from cedar.operators.algebra import algebra_of
from cedar.operators.base import Bound, Effects, Env, GroupUse, Kernel, Schema, by_content
from cedar.operators.batch_calls import UNIT, MapToValue, bind_batch, call_batch
from cedar.operators.calls import Call, CallKernel, FunctionOperator
from cedar.operators.failures import BadResult, ErrorContext, Failure, no_rows, without
from cedar.operators.functions import check_columns, check_fn, names_written
from cedar.operators.outputs import Form, Outputs, SampledResults, Types, declared_types, fix_outputs, types_of_results
from cedar.operators.transform import Chainable, Link, Transform, TransformRows, as_tuple, check_transform


@dataclass(frozen=True)
class Map(FunctionOperator, Chainable):
    """Call ``fn`` once per row, or once per batch after a ``batch``; ``Pipeline.map`` describes the arguments.

    A ``Transform`` works on whole columns. ``exact`` is False if its result may differ within its ``tolerance``.
    """

    fn: Callable[..., Any]
    columns: tuple[str, ...] = ()
    into: str | tuple[str, ...] | None = None
    random: bool = False
    named: str | None = None
    dtype: Any = None
    on_error: Skip | None = None
    timeout: float | None = None
    exact: bool = True
    name = "map"

    def __post_init__(self) -> None:
        check_columns("map", self.columns)
        if isinstance(self.fn, Transform):
            check_transform(self.fn, self.columns, self.written, self.random, self.dtype, self.timeout)
        self.check()
        declared_types(self.fn, self.form, self.written, self.dtype)

    @property
    def written(self) -> tuple[str, ...]:
        """The columns written; () if the function returns whole rows."""
        several = isinstance(self.fn, Transform) and self.fn.outputs is None
        return names_written("map", self.into, default=self.columns if several else self.columns[:1])

    def _fills_columns(self, result: Any) -> bool:
        """Return whether a result looks as if it were meant for all columns that the function reads."""
        return isinstance(result, tuple) and len(result) == len(self.columns) > 1

    @property
    def form(self) -> Form:
        if len(self.written) > 1:
            return "tuple"
        return "value" if self.written else "dict"

    def effects(self) -> Effects:
        return Effects(
            reads=frozenset(self.columns) or None,
            writes=frozenset(self.written) or None,
            random=self.random or (isinstance(self.fn, Transform) and self.fn.random),
            rows="1:0..1" if self.on_error is not None and self.on_error.refill else "1:1",
            per_row=self.fn.per_row if isinstance(self.fn, Transform) else True,
            algebra=algebra_of(self.fn) if len(self.columns) == 1 and self.written == self.columns else None,
            waits=not isinstance(self.fn, Transform) or self.fn.waits or self.fn.pooled,
        )

    def schema(self, *inputs: Schema) -> Schema:
        (known,) = inputs
        require_columns(self.columns, known, self.label())
        if self.form == "dict" or known is None:
            return None
        if isinstance(self.fn, Transform):
            types = [known[name] for name in self.columns]
            made = (UNKNOWN,) * len(self.written) if UNKNOWN in types else as_tuple(self.fn.result(*types))
            return known | dict(zip(self.written, made, strict=True))
        declared = declared_types(self.fn, self.form, self.written, self.dtype)
        return known | {name: declared.get(name, (UNKNOWN,))[0] for name in self.written}

    def code(self) -> tuple[Any, ...]:
        return (self.fn, self.fn.identity) if isinstance(self.fn, Transform) else (self.fn,)

    def computes(self) -> Hashable:
        return by_content(self, but=("into",))

    @property
    def group_use(self) -> GroupUse:
        """Return "once" for a row-wise transform, or a function of one column with an algebra mark, except transforms
        that chains fuse with their neighbors.
        """
        if isinstance(self.fn, Transform):
            once = not self.fn.random and self.fn.chain is None
        else:
            once = self.effects().algebra is not None
        return "once" if once and not self.random else "kept"

    @property
    def link(self) -> Link | None:
        if not isinstance(self.fn, Transform):
            return None
        return Link(self.fn, self.columns, self.written, self.exact)

    def loosened(self) -> Map:
        return replace(self, exact=False)

    def bind(self, bound: Bound) -> Kernel:
        if isinstance(self.fn, Transform):
            if self.fn.mixes_rows and not bound.batched:
                raise PipelineError(
                    f"{bound.label} mixes the rows of a batch, but its input is not batched",
                    site=bound.site,
                    fix="call it after .batch(n)",
                )
            like = None
            if (bound.types or {}).get(self.columns[0], UNKNOWN) in (UNKNOWN, OBJECT):
                like = self.fn.like(lambda: bound.sample().columns[self.columns[0]])
            link = Link(self.fn, self.columns, self.written, self.exact, like)
            return TransformRows(link, ErrorContext.at(bound), bound.draw)
        call = self.call(bound)
        declared = declared_types(self.fn, self.form, self.written, self.dtype)
        if bound.batched:
            return bind_batch(call, self.columns, self.form, self.written, declared, bound)

        def observe() -> Types:
            sampled = sample_results(call, self.columns, bound.sample(), bound.env)
            if self.into is None and sampled.results and all(map(self._fills_columns, sampled.results)):
                raise call.blame.refusal(
                    f"the function returns a tuple for {len(self.columns)} columns, but into= names none of them",
                    fix=f"into={self.columns} writes them all; into={self.columns[0]!r} writes the tuple to one column",
                )
            return types_of_results(call.blame, self.form, self.written, declared, sampled)

        return MapRows(call, self.columns, fix_outputs(call.blame, self.form, self.written, declared, observe))


class Collate(Map):
    """Calls ``fn`` on each batch as a list of row dicts, like the collate functions of torch and Hugging Face."""

    name = "collate"

    def __post_init__(self) -> None:
        check_fn("batch: collate", self.fn, 1, random=self.random)

    def bind(self, bound: Bound) -> Kernel:
        return MapToValue(self.call(bound), rows=True)


def sample_results(call: Call, columns: tuple[str, ...], block: Block, env: Env) -> SampledResults:
    """Call a function on a block's rows and return the results, or the items of the results for ``flat_map``."""
    results, failures = call.on_rows(block, env, columns)
    keys = block.live_keys()
    good = [(value, i) for i, value in enumerate(results) if i not in failures]
    if call.items:
        good = [(item, i) for items, i in good for item in items]
    first = min(failures, default=None)
    failure = None if first is None else (failures[first], keys.ref(first))
    return SampledResults(
        [value for value, _ in good], [keys.ref(i) for _, i in good], failure, len(failures), len(keys)
    )


@dataclass(frozen=True)
class MapRows(CallKernel):
    """The kernel of ``map``, which converts results to columns and applies the policy to failing rows."""

    call: Call
    columns: tuple[str, ...]
    outputs: Outputs
    row_wise: ClassVar[bool] = True

    @property
    def row_bytes(self) -> int:
        kinds = [kind for kind in self.outputs.types.values() if isinstance(kind, TensorType)]
        return sum(np.dtype(kind.dtype).itemsize * math.prod(kind.shape) for kind in kinds)

    def __call__(self, block: Block, env: Env) -> Block:
        blame: ErrorContext = self.call.blame
        written = self._written(env.place, len(block))
        results, failures = self.call.on_rows(block, env, self.columns, written)
        columns, misfits = self._columns(results, failures, written, env.place)
        if misfits:
            rows = [i for i in range(len(results)) if i not in failures]
            failures |= {rows[i]: failure for i, failure in misfits.items()}
        block = blame.settle(block, env, failures)
        return block.only_columns(columns) if self.outputs.form == "dict" else block.with_columns(columns)

    def _written(self, place: BatchPlace | None, rows: int) -> RowWriter | None:
        """Return a writer into the column's memory if the function returns one large array per row; otherwise None."""
        if self.outputs.form != "value" or (place is None and self.row_bytes < _MIN_WRITTEN_BYTES):
            return None
        ((name, kind),) = self.outputs.types.items()
        if not isinstance(kind, TensorType):
            return None
        if place is None:
            return RowWriter(name, buffers.empty((rows, *kind.shape), kind.dtype))
        out = place.array(name, rows, kind.shape, kind.dtype)
        return None if out is None else RowWriter(name, out)

    def _columns(
        self, results: list[Any], failures: dict[int, Failure], written: RowWriter | None, place: BatchPlace | None
    ) -> tuple[dict[str, Column], dict[int, Failure]]:
        if written is None:
            return self.outputs.columns(without(results, failures) if failures else results, place)
        if not failures and all(result is WRITTEN for result in results):
            return {written.name: written.out}, {}
        rows = [written.out[i] if result is WRITTEN else result for i, result in enumerate(results)]
        return self.outputs.columns(without(rows, failures) if failures else rows)


WRITTEN = object()  # a placeholder for the result of a row whose array was written into the column's memory
_MIN_WRITTEN_BYTES = 1 << 14  # smaller arrays are copied together, which takes fewer calls


@dataclass(frozen=True)
class RowWriter:
    """Copies each returned array into its row of a column immediately, so that the array's memory can be reused."""

    name: str
    out: npt.NDArray[Any]

    def __call__(self, row: int, result: Any) -> Any:
        out = self.out
        if type(result) is not np.ndarray or result.shape != out.shape[1:] or result.dtype != out.dtype:
            return result  # ``Outputs`` converts the result or reports it as invalid
        out[row] = result
        return WRITTEN


@dataclass(frozen=True)
class FilterFunction(FunctionOperator):
    """Keep the rows for which ``fn`` returns True. After a ``batch``, ``fn`` gets arrays and decides on the batch."""

    fn: Callable[..., Any]
    columns: tuple[str, ...] = ()
    on_error: Skip | None = None
    random: bool = False
    name = "filter"

    def __post_init__(self) -> None:
        self.check()

    def effects(self) -> Effects:
        reads = frozenset(self.columns) or None
        return Effects(reads, frozenset(), random=self.random, rows="1:0..1", per_row=True)

    def schema(self, *inputs: Schema) -> Schema:
        require_columns(self.columns, inputs[0], self.label())
        return inputs[0]

    group_use = "kept"

    def bind(self, bound: Bound) -> Kernel:
        call = self.call(bound)
        return FilterBatch(call, self.columns) if bound.batched else FilterRows(call, self.columns)


@dataclass(frozen=True)
class FilterRows(CallKernel):
    """The kernel of ``filter`` on rows."""

    call: Call
    columns: tuple[str, ...]
    row_wise: ClassVar[bool] = True

    def __call__(self, block: Block, env: Env) -> Block:
        blame = self.call.blame
        results, failures = self.call.on_rows(block, env, self.columns)
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
        fix = "after batch(), one bool decides on the whole batch: .any() or .all(); filter rows before batch()"
    return call.blame.failure(BadResult(f"returned {describe(result)}, not True or False", fix))
