"""Batch calls: a user's function on arrays, once per batch or group of rows, and the columns that they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from cedar.core.block import Block
from cedar.core.boundary import as_column
from cedar.core.columns import OBJECT, Column, ColumnType, blank, objects, type_of
from cedar.core.value_types import infer_type
from cedar.core.values import ValueMismatch, build_column, describe, type_name
from cedar.operators.base import Bound, Env
from cedar.operators.calls import Call
from cedar.operators.failures import BadResult, first_row
from cedar.operators.outputs import SAMPLED, Form, check_row_names
from cedar.operators.whole_batch import UNIT, MapToValue, call_batch, holding


class UnequalLengths(BadResult):
    """Columns of different lengths do not make rows."""


def array_column(value: Any, kind: ColumnType | None, name: str) -> Column:
    """What a function returned for a column, as one: an array or tensor, a list, a JaggedTensor, a dict of such.

    It is taken over without a copy where its type allows. ``kind`` is what it must be; None infers.

    Raises:
        BadResult: it is no array, or of another type than ``kind``.
    """
    column = _column(value, kind, name)
    actual = type_of(column)
    if kind is None or actual == kind:
        return column
    if isinstance(kind, pa.DataType) and isinstance(actual, pa.DataType) and pa.types.is_null(actual):
        return column.cast(kind)
    if kind == OBJECT:
        return objects(column.to_pylist() if isinstance(column, pa.Array) else list(column))
    raise BadResult(
        f"returned {type_name(actual)} for column {name!r}, where {type_name(kind)} was fixed",
        "return one dtype and one shape per row for every batch (.astype, padding to a fixed length), or give dtype=",
    )


def _column(value: Any, kind: ColumnType | None, name: str) -> Column:
    if isinstance(value, np.ma.MaskedArray):
        raise BadResult(f"returned a masked array for column {name!r}", "fill it: array.filled(value)")
    if isinstance(value, np.ndarray) and value.ndim and value.dtype != object:
        return as_column(value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("=")))
    if isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim == 1):
        try:
            values: Sequence[Any] = list(value)
            return build_column(values, infer_type(values) if kind is None else kind)
        except ValueMismatch as misfit:
            raise BadResult(f"column {name!r}: {misfit.message}", "return one type, or give dtype=") from misfit
    if isinstance(value, dict) and value:
        return _struct(value, kind, name)
    if isinstance(value, (pa.Array, pa.ChunkedArray)) or hasattr(value, "to_arrow") or hasattr(value, "detach"):
        try:
            return as_column(value)
        except (TypeError, pa.ArrowException) as error:  # bfloat16, which NumPy has not; DataFrames
            raise BadResult(f"returned {describe(value)} for column {name!r}: {error}", "convert it first") from error
    fix = "did it forget to return? " if value is None else ""
    raise BadResult(
        f"returned {describe(value)} for column {name!r}, not an array", f"{fix}return an array with one entry per row"
    )


def _struct(value: dict[Any, Any], kind: ColumnType | None, name: str) -> pa.Array:
    fields = {f.name: f.type for f in kind} if isinstance(kind, pa.StructType) else {}
    children = [array_column(child, fields.get(key), f"{name}.{key}") for key, child in value.items()]
    if any(not isinstance(child, pa.Array) for child in children) or len(set(map(len, children))) > 1:
        raise BadResult(f"returned a dict for column {name!r} whose arrays do not make rows", "return an array")
    return pa.StructArray.from_arrays(children, names=list(value))


@dataclass(frozen=True)
class Arrays:
    """The columns that the results become, their types fixed: like ``Outputs``, a batch at a time."""

    form: Form
    types: dict[str, ColumnType]

    def columns(self, result: Any) -> dict[str, Column]:
        """The columns of a result.

        Raises:
            BadResult: another form, another type, or columns of different lengths.
        """
        arrays = named_arrays(result, self.form, tuple(self.types))
        columns = {name: array_column(arrays[name], kind, name) for name, kind in self.types.items()}
        if len(set(map(len, columns.values()))) > 1:
            lengths = ", ".join(f"{name}: {len(column)}" for name, column in columns.items())
            raise UnequalLengths(f"returned columns of different lengths ({lengths})", "return as many rows in each")
        return columns

    def empty(self) -> dict[str, Column]:
        return {name: blank(kind, 0) for name, kind in self.types.items()}


def named_arrays(result: Any, form: Form, names: tuple[str, ...] | None) -> Mapping[str, Any]:
    """A result's arrays by column; ``names`` is None where a dict may have any.

    Raises:
        BadResult: it is not what the form says.
    """
    if form == "value" and names is not None:
        return {names[0]: result}
    if form == "tuple" and names is not None:
        if not isinstance(result, (tuple, list)) or len(result) != len(names):
            raise BadResult(f"returned {describe(result)}, not a tuple of {len(names)} arrays", "return one per column")
        return dict(zip(names, result, strict=True))
    if not isinstance(result, dict):
        raise BadResult(f"returned {describe(result)}, not a dict of arrays", "return a dict: column name to array")
    if names is None:
        return result
    for name in names:
        if name not in result:
            raise BadResult(f"returned no column {name!r}", f"the columns are fixed: return {', '.join(names)}")
    for name in result:
        if name not in names:
            raise BadResult(f"returned a column {name!r} more", f"the columns are fixed: return {', '.join(names)}")
    return result


def bind_batch(
    call: Call, columns: tuple[str, ...], form: Form, into: tuple[str, ...], declared: Mapping[str, Any], bound: Bound
) -> MapBatch | MapToValue:
    """The kernel of ``map`` on batches, its types declared or taken from a call on the sample.

    A function of the whole batch whose result there is not a dict of columns is one whose results are delivered as they
    are.

    Raises:
        RowError: the call on the sample failed, and the types are not all declared.
    """
    types = {name: kind for name, (kind, _) in declared.items()}
    if form != "dict" and len(types) == len(into):
        return MapBatch(call, columns, Arrays(form, {name: types[name] for name in into}))
    block = bound.sample()
    if not len(block):
        open_types = {name: pa.null() for name in into}
        return MapBatch(call, columns, Arrays(form, open_types | types))
    result, failure = call_batch(call, columns, block, bound.env)
    if failure is not None:
        if form == "dict" and types:
            return MapBatch(call, columns, Arrays(form, types))
        fix = f"{failure.fix}; where it needs a full batch, give dtype=, so that it is not tried on {SAMPLED}"
        raise call.blame.error(replace(failure, fix=fix), first_row(block, UNIT))
    strange = isinstance(result, dict) and not all(isinstance(name, str) for name in result)
    if form == "dict" and not types and strange:
        return MapToValue(call)
    try:
        arrays = named_arrays(result, form, into or None)
        check_row_names(call.blame, arrays, types)
        kinds = {n: types[n] if n in types else type_of(array_column(a, None, n)) for n, a in arrays.items()}
        outputs = Arrays(form, kinds)
        outputs.columns(result)
    except BadResult as error:
        if form == "dict" and not types and result is not None:
            return MapToValue(call)
        raise call.blame.error(call.blame.failure(error), first_row(block, UNIT)) from error
    return MapBatch(call, columns, outputs)


@dataclass(frozen=True)
class MapBatch:
    """The kernel of ``map`` below a ``batch``: one call per batch. A function of the whole batch may resize it."""

    call: Call
    columns: tuple[str, ...]
    outputs: Arrays

    def __call__(self, block: Block, env: Env) -> Block:
        rows, whole = len(block), self.outputs.form == "dict"
        if not rows:
            return self._with(block, self.outputs.empty())
        result, failure = call_batch(self.call, self.columns, block, env)
        if failure is None:
            try:
                written = self.outputs.columns(result)
                count = len(next(iter(written.values()), ())) if written else rows
                if count != rows and not whole:
                    raise BadResult(
                        f"returned {count} rows for a batch of {rows}",
                        "return one entry per row; a function of the whole batch (no columns named) may resize it",
                    )
            except BadResult as error:
                if whole and isinstance(error, UnequalLengths):  # those of the sample were equal by chance
                    return holding(block, result)
                failure = self.call.blame.failure(error)
            else:
                return replace(self._with(block, written), aligned=block.aligned and count == rows)
        return self._with(self.call.blame.settle_whole(block, env, failure, UNIT), self.outputs.empty())

    def _with(self, block: Block, columns: dict[str, Column]) -> Block:
        return block.only_columns(columns) if self.outputs.form == "dict" else block.with_columns(columns)
