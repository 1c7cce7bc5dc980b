"""map_batches: calls a function on many rows at a time, as a table, a data frame, arrays or tensors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa

from cedar.core.block import Block
from cedar.core.boundary import to_frame
from cedar.core.columns import UNKNOWN, Column, concat, type_of
from cedar.core.errors import PipelineError, RowError, Skip, invalid_call, require_columns
from cedar.core.jagged import JaggedTensor
from cedar.core.limits import as_int
from cedar.core.stream import Abstract
from cedar.core.values import describe
from cedar.operators.base import Bound, Effects, Env, Kernel, Resizable, Schema
from cedar.operators.calls import Call, CallKernel, FunctionOperator, numpy_columns, pick
from cedar.operators.determinism import find_row_dependence
from cedar.operators.failures import BadResult, ErrorContext, Failure, first_row
from cedar.operators.functions import check_columns, check_fn, check_policy, names_written
from cedar.operators.outputs import SAMPLED, Outputs, array_column, check_row_names, fix_outputs, named_arrays

UNIT = "rows starting at"


class ExactRows(Abstract):
    """A row operator that may need an exact number of rows at a time, so that it runs in a separate stage."""

    @property
    @abstractmethod
    def exact_rows(self) -> int | None:
        """The number of rows; None if the operator accepts any number."""


@dataclass(frozen=True)
class MapBatches(FunctionOperator, ExactRows, Resizable):
    """Call ``fn`` on many rows at a time; see ``Pipeline.map_batches``.

    ``fn`` takes and returns the same kind of container, even for a single column: a ``pyarrow.Table`` ("arrow"), a
    ``polars.DataFrame`` ("polars"), or a dict of column name to array ("numpy") or tensor ("torch"). In both kinds of
    dicts, columns of lists are JaggedTensors. NumPy arrays are read-only and tensors are copies. Returned arrays are
    not copied if their type allows. Without ``columns``, ``fn`` receives all, and its result replaces them all.

    If ``fn`` fails and there is a policy, cedar runs rows one by one without ``size``; with ``size``, it drops all rows
    of the call.
    """

    fn: Callable[..., Any]
    columns: tuple[str, ...] = ()
    into: str | tuple[str, ...] | None = None
    format: Format = "arrow"
    size: int | None = None
    on_error: Skip | None = None
    name = "map_batches"

    def resized(self, few: Callable[[int, int, int], int]) -> MapBatches:
        return self if self.size is None else replace(self, size=few(self.size, 3, 3))

    def __post_init__(self) -> None:
        check_columns("map_batches", self.columns)
        check_fn("map_batches", self.fn, 1)
        check_policy(self.label(), self.on_error)
        if self.format not in get_args(Format):
            known = ", ".join(map(repr, get_args(Format)))
            raise invalid_call(f"map_batches: unknown format {self.format!r}", fix=f"use one of {known}")
        object.__setattr__(self, "size", as_int(self.size))
        if self.size is not None and (not isinstance(self.size, int) or isinstance(self.size, bool) or self.size < 1):
            raise invalid_call(f"map_batches: size={self.size!r}", fix="give a number of rows, 1 or more")
        if self.into is not None and not self.columns:
            raise invalid_call("map_batches: into= without columns", fix="name the columns that the function reads")
        names_written("map_batches", self.into, default=())

    @property
    def written(self) -> tuple[str, ...]:
        """The columns written; () if the result replaces all columns."""
        return names_written("map_batches", self.into, default=self.columns)

    def effects(self) -> Effects:
        refills = self.on_error is not None and self.on_error.refill
        return Effects(
            reads=frozenset(self.columns) or None,
            writes=frozenset(self.written) or None,
            rows="1:0..1" if refills else "1:1",
        )

    def schema(self, *inputs: Schema) -> Schema:
        (known,) = inputs
        require_columns(self.columns, known, self.label())
        if not self.columns or known is None:
            return None
        return known | dict.fromkeys(self.written, UNKNOWN)

    def parameters(self) -> dict[str, Any]:
        return {"size": self.size}

    @property
    def exact_rows(self) -> int | None:
        return self.size

    def bind(self, bound: Bound) -> Kernel:
        call = self.call(bound)
        single = self.size is None and not bound.batched
        return MapBlock(call, self.columns, self.written, self.format, single).fixed(
            bound.sample(), self.size, bound.env
        )


@dataclass(frozen=True)
class MapBlock(CallKernel):
    """The kernel of ``map_batches``: one call per block.

    ``columns`` is () if the function receives all, and ``into`` if it may return any. ``single`` means that rows are
    independent, so that a failing block can be retried row by row. ``outputs`` is None until the types are fixed.
    """

    call: Call
    columns: tuple[str, ...]
    into: tuple[str, ...]
    format: Format
    single: bool
    outputs: Outputs | None = None

    @property
    def row_wise(self) -> bool:
        return self.single

    def fixed(self, block: Block, size: int | None, env: Env) -> MapBlock:
        """Return the kernel with types inferred from the sample; without ``size``, also test that it is row-wise.

        Raises:
            RowError: the function fails on every row of the sample.
            PipelineError: a row's result depends on other rows, or the result has a different number of rows.
        """
        if not len(block):  # even a call on zero rows may show the result's types
            types = dict.fromkeys(self.into, pa.null())
            with suppress(PipelineError):
                none = self._attempt(block.slice(0, 0), env)
                types |= {} if isinstance(none, Failure) else {name: type_of(column) for name, column in none.items()}
            return self._with_types(types)
        group = block.slice(0, min(size, block.slots)) if size is not None else block
        result = self._attempt(group, env)
        if isinstance(result, Failure) and self.single:
            alone = [self._attempt(group.take(np.array([slot])), env) for slot in group.live_slots()]
            group = group.filter(np.array([not isinstance(one, Failure) for one in alone]))
            result = self._attempt(group, env) if len(group) else result
        if isinstance(result, Failure):
            raise self.call.blame.error(result, first_row(group if len(group) else block, UNIT))
        fixed = self._with_types({name: type_of(column) for name, column in result.items()})
        if self.single:
            self._check_row_wise(fixed, group, env, result)
        return fixed

    def _with_types(self, types: dict[str, Any]) -> MapBlock:
        observed = {name: (kind, SAMPLED) for name, kind in types.items()}
        return replace(self, outputs=fix_outputs(self.call.blame, "dict", (), {}, lambda: observed))

    def _check_row_wise(self, fixed: MapBlock, block: Block, env: Env, whole: dict[str, Column]) -> None:
        def again(part: Block) -> dict[str, Column]:
            result = fixed._attempt(part, env)
            if isinstance(result, Failure):
                raise self.call.blame.error(result, first_row(part, UNIT))
            return result

        reason = find_row_dependence(again, block, whole)
        if reason is not None:
            why, fix = reason
            raise self.call.blame.refusal(f"{why}", fix=fix)

    def __call__(self, block: Block, env: Env) -> Block:
        assert self.outputs is not None
        if not len(block):
            return self._write(block, self.outputs.empty())
        columns = self._attempt(block, env)
        if not isinstance(columns, Failure):
            return self._write(block, columns)
        if not self.single:
            block = self.call.blame.settle_whole(block, env, columns, UNIT)
            return self._write(block, self.outputs.empty())
        return self._one_by_one(block, env, columns, self.outputs)

    def _one_by_one(self, block: Block, env: Env, failure: Failure, outputs: Outputs) -> Block:
        """Run rows one by one and keep those that succeed; if none fails, the whole block fails."""
        blame = self.call.blame
        good: list[dict[str, Column]] = []
        failures: dict[int, Failure] = {}
        for row, slot in enumerate(block.live_slots()):
            columns = self._attempt(block.take(np.array([slot])), env)
            if isinstance(columns, Failure):
                failures[row] = columns
                if blame.stops(env):
                    break
            else:
                good.append(columns)
        if not failures:
            raise blame.error(failure, first_row(block, UNIT))
        block = blame.settle(block, env, failures)
        parts = good or [outputs.empty()]
        return self._write(block, {name: concat([part[name] for part in parts]) for name in outputs.types})

    def _attempt(self, block: Block, env: Env) -> dict[str, Column] | Failure:
        """Call the function on a block and return its columns or the failure."""
        given = container(block, self.columns or tuple(block.columns), self.format, self.call.blame)
        results, failures = self.call.run(env, [[given]], 1)
        if failures:
            return failures[0]
        try:
            columns = self._columns(arrays_of(results[0], self.format))
        except BadResult as error:
            return self.call.blame.failure(error)
        for column in columns.values():
            if len(column) != len(block):
                raise PipelineError(
                    f"{self.call.blame.label} got {len(block)} rows and returned {len(column)}",
                    site=self.call.blame.site,
                    fix="use filter to drop rows and flat_map to make more; after batch(), map(fn) without columns",
                )
        return columns

    def _columns(self, arrays: Mapping[str, Any]) -> dict[str, Column]:
        if self.outputs is not None:
            return self.outputs.arrays(arrays)
        arrays = named_arrays(arrays, "dict", self.into or None)
        check_row_names(self.call.blame, arrays, {})
        return {name: array_column(array, None, name) for name, array in arrays.items()}

    def _write(self, block: Block, columns: dict[str, Column]) -> Block:
        return block.with_columns(columns) if self.columns else block.only_columns(columns)


# ---- the function's argument and result ------------------------------------------------------------------------------


Format: TypeAlias = Literal["arrow", "polars", "numpy", "torch"]


def container(block: Block, columns: tuple[str, ...], format: Format, blame: ErrorContext) -> Any:
    """Convert columns to the kind of container that ``format`` names, for the user's function."""
    if format == "numpy":
        return numpy_columns(block, columns, blame)
    from cedar.core.convert import to_arrow, to_torch

    if format == "torch":
        keys = block.live_keys() if block.aligned else None
        try:
            return {name: _own(to_torch(pick(block, name, blame), name, keys)) for name in columns}
        except RowError as error:
            error.site = error.site or blame.site
            raise
    arrays = {name: to_arrow(pick(block, name, blame), name) for name in columns}
    if format == "arrow":
        return pa.table(arrays)
    return to_frame(arrays, blame.refusal)


def _own(tensors: Any) -> Any:
    """Copy tensors, because they cannot be read-only and a block may be shared or processed again after a retry."""
    if isinstance(tensors, dict):
        return {name: _own(child) for name, child in tensors.items()}
    if isinstance(tensors, JaggedTensor):
        return JaggedTensor(_own(tensors.values), _own(tensors.offsets))
    return tensors.clone() if hasattr(tensors, "clone") else tensors


def arrays_of(result: Any, format: Format) -> dict[str, Any]:
    """Return the columns of the user function's result."""
    wanted = {"arrow": "a pyarrow.Table", "polars": "a polars.DataFrame"}.get(format, "a dict of arrays")
    if format == "arrow" and isinstance(result, (pa.Table, pa.RecordBatch)):
        names = result.schema.names
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise BadResult(f"returned the column {twice!r} twice", "name each column once")
        return dict(zip(result.schema.names, result.columns, strict=True))
    if format == "polars" and hasattr(result, "get_columns"):
        return {series.name: series for series in result.get_columns()}
    if format in ("numpy", "torch") and isinstance(result, Mapping):
        return dict(result)
    fix = "did it forget to return? " if result is None else ""
    raise BadResult(f"returned {describe(result)}, not {wanted}", f'{fix}format="{format}" gives and takes {wanted}')
