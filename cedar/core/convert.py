"""Conversion of columns to NumPy, torch and Arrow. docs/columns.md has the table.

Two rules hold for every conversion. The dtype of a result depends only on the type of the column, not on its values,
so nulls that the dtype cannot represent raise an error. The result shares the column's memory if the type allows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from cedar.core.boundary import as_column, canonical_type
from cedar.core.columns import NUMBERS, Column, floats, from_flags, from_numbers, integer_type, numbers
from cedar.core.cursor import Keys
from cedar.core.errors import PipelineError, RowError
from cedar.core.groups import GroupColumn, plain
from cedar.core.jagged import JaggedTensor

RowOf: TypeAlias = Callable[[int], int]  # the row of the batch that holds value i of a nested array
Leaf: TypeAlias = "Callable[[pa.Array, _ArrayOrigin], Any]"
Share: TypeAlias = Callable[[pa.Array], Any]  # converts numbers without a copy

_LIST, _LARGE_LIST = pa.list_(pa.null()).id, pa.large_list(pa.null()).id
_FIXED_LIST, _STRUCT = pa.list_(pa.null(), 1).id, pa.struct([]).id


class _ArrayOrigin:
    """The location of an array, for error messages: its column, and the row of each of its values.

    ``path`` lists the steps from the column to the array, named like the methods of expressions: "list", "arr",
    "field NAME" and, if the structs themselves may be null, "null".
    """

    __slots__ = ("column", "keys", "name", "path", "row_of")

    def __init__(
        self, name: str, keys: Keys | None, row_of: RowOf | None = None, column: str = "", path: tuple[str, ...] = ()
    ) -> None:
        self.name, self.keys, self.row_of, self.column, self.path = name, keys, row_of, column or name, path

    def inside(self, row_of: RowOf, kind: str) -> _ArrayOrigin:
        outer = self.row_of
        inner = row_of if outer is None else lambda i: outer(row_of(i))
        return _ArrayOrigin(self.name, self.keys, inner, self.column, (*self.path, kind))

    def child(self, field: str, nulls: bool) -> _ArrayOrigin:
        step = ("null",) if nulls else (f"field {field}",)
        return _ArrayOrigin(f"{self.name}.{field}", self.keys, self.row_of, self.column, (*self.path, *step))

    def call_code(self, method: str) -> str:
        """Return the user code that calls a method of expressions on this array."""
        column = self.column
        expr = _call_code(f"col({column!r})", self.path, method)
        return f"with_columns({column}={expr})" if column.isidentifier() else f"with_columns(**{{{column!r}: {expr}}})"

    def null_error(self, array: pa.Array, fix: str, gaps: str = "nulls") -> RowError:
        first = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
        row = first if self.row_of is None else self.row_of(first)
        return RowError(
            f"column {self.name!r} of {array.type} has {gaps} (first at row {row} of the batch)",
            row=None if self.keys is None else self.keys.ref(row),
            fix=fix,
        )


def _call_code(here: str, path: Sequence[str], method: str) -> str:
    if not path:
        return f"{here}.{method}"
    step, *rest = path
    if step == "null":
        return f"{here}.fill_null(polars.struct(...))"
    if step in ("list", "arr"):
        return f"{here}.{step}.eval({_call_code('polars.element()', rest, method)})"
    return f"{here}.struct.with_fields({_call_code(f'polars.field({step[6:]!r})', rest, method)})"


def to_numpy(column: Column, name: str, keys: Keys | None = None) -> Any:
    """Convert a column to an ndarray, a JaggedTensor (lists) or a dict (structs); shares memory if the type allows.

    Args:
        column: a column of a Block.
        name: the name of the column, for error messages.
        keys: one key per row, so that errors can name the row in its source.

    Raises:
        RowError: the column has nulls that its dtype cannot hold.

    Examples:
        >>> import pyarrow as pa
        >>> from cedar.core.convert import to_numpy
        >>> to_numpy(pa.array([1.5, None]), "x").tolist()
        [1.5, nan]
        >>> to_numpy(pa.array([[1, 2], [3]], pa.large_list(pa.int64())), "ids").to_list()
        [[1, 2], [3]]
    """
    return to_numpy_each({name: column}, keys)[name]


def to_numpy_each(columns: Mapping[str, Column], keys: Keys | None = None) -> dict[str, Any]:
    """Apply ``to_numpy`` to columns of equal length. Numeric columns, usually the majority, are converted together."""
    arrays: dict[str, Any] = dict(columns)
    gaps: dict[str, pa.Array] = {}
    lists: dict[str, pa.Array] = {}
    for name, column in columns.items():
        if isinstance(column, np.ndarray):
            continue
        dtype = NUMBERS.get(column.type.id) if isinstance(column, pa.Array) and len(column) else None
        if dtype is not None and not column.null_count:
            arrays[name] = np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * dtype.itemsize)
        elif dtype is not None and dtype.kind == "f":
            gaps[name] = column
        elif isinstance(column, pa.Array) and len(column) and column.type.id == _LARGE_LIST:
            lists[name] = column
        else:
            arrays[name] = _convert(plain(column), _ArrayOrigin(name, keys), _numpy_leaf, numbers)
    if gaps:
        arrays.update(zip(gaps, floats(list(gaps.values())), strict=True))
    if lists:
        arrays.update(_convert_lists_each(lists, keys, _numpy_leaf, numbers))
    return arrays


def to_torch(column: Column, name: str, keys: Keys | None = None) -> Any:
    """Convert a column to a tensor, a JaggedTensor (lists), a dict (structs) or a list (strings, objects).

    Tensors share the memory of the column if the type allows; writing to them writes to the batch.

    Args:
        column: a column of a Block.
        name: the name of the column, for error messages.
        keys: one key per row, so that errors can name the row in its source.

    Raises:
        RowError: the column has nulls that its dtype cannot hold.
        PipelineError: the column has no torch dtype, such as decimals.

    Examples:
        >>> import pyarrow as pa
        >>> from cedar.core.convert import to_torch
        >>> to_torch(pa.array([1, 2]), "x")
        tensor([1, 2])
    """
    return to_torch_each({name: column}, keys)[name]


def to_torch_each(columns: Mapping[str, Column], keys: Keys | None = None) -> dict[str, Any]:
    """Apply ``to_torch`` to columns of equal length."""
    import torch
    from torch.utils.dlpack import from_dlpack

    arrays = {n: c for n, c in columns.items() if isinstance(c, pa.Array) and c.type.id in NUMBERS}
    values, tensors = to_numpy_each(arrays, keys), dict(columns)
    lists: dict[str, pa.Array] = {}
    for name, column in columns.items():
        if name in values:
            tensors[name] = torch.from_numpy(values[name]) if values[name].flags.writeable else from_dlpack(column)
        elif isinstance(column, np.ndarray):
            tensors[name] = list(column) if column.dtype == object else _tensor(column, name)
        elif isinstance(column, pa.Array) and len(column) and column.type.id == _LARGE_LIST:
            lists[name] = column
        else:
            tensors[name] = _convert(plain(column), _ArrayOrigin(name, keys), _torch_leaf, from_dlpack)
    if lists:
        tensors.update(_convert_lists_each(lists, keys, _torch_leaf, from_dlpack))
    return tensors


def to_arrow(column: Column, name: str) -> pa.Array:
    """Convert a column to Arrow; ndarrays of shape (rows, k, ...) become fixed-size lists that share their memory.

    Raises:
        PipelineError: Arrow cannot hold the dtype or the objects.

    Examples:
        >>> import numpy as np
        >>> from cedar.core.convert import to_arrow
        >>> to_arrow(np.zeros((2, 3), dtype=np.float32), "x").type
        FixedSizeListType(fixed_size_list<item: float>[3])
    """
    if isinstance(column, pa.Array | GroupColumn):
        return plain(column)
    try:
        if column.dtype == object:
            return as_column(pa.array(column.tolist()))
        flat = column.reshape(-1)
        kind = pa.from_numpy_dtype(flat.dtype)  # pa.array would import pandas, which takes a third of a second
        if kind.id in NUMBERS:
            values = from_numbers(flat, kind)
        else:
            values = from_flags(flat) if pt.is_boolean(kind) else pa.array(flat)
        for depth in range(column.ndim - 1, 0, -1):
            if column.shape[depth]:
                values = pa.FixedSizeListArray.from_arrays(values, column.shape[depth])
            else:  # columns and Parquet files have no fixed-size lists of size 0
                values = pa.array([[]] * int(np.prod(column.shape[:depth])), pa.large_list(values.type))
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        kind = "Python objects" if column.dtype == object else str(column.dtype)
        raise PipelineError(
            f"column {name!r} of {kind} cannot be stored in Arrow: {error}",
            fix=f"drop({name!r}), or map it to numbers, strings, lists or dicts first",
        ) from error
    return values


def _convert(array: pa.Array, origin: _ArrayOrigin, leaf: Leaf, share: Share) -> Any:
    """Convert an array of any type. ``share`` converts numbers, and ``leaf`` other values without parts."""
    kind = array.type
    if kind.id in NUMBERS:
        if not array.null_count:
            return share(array)
        if NUMBERS[kind.id].kind != "f":
            raise origin.null_error(array, _fill_hint(origin))
        (values,) = floats([array])
        return values if share is numbers else share(values)
    if kind.id in (_LIST, _LARGE_LIST):
        return _convert_lists(array, origin, leaf, share)
    if kind.id == _FIXED_LIST:
        return _convert_fixed_lists(array, origin, leaf, share)
    if kind.id == _STRUCT:
        fields, nulls = zip(kind, array.flatten(), strict=True), array.null_count > 0
        return {f.name: _convert(child, origin.child(f.name, nulls), leaf, share) for f, child in fields}
    if kind != canonical_type(kind):
        return _convert(as_column(array), origin, leaf, share)
    return leaf(array, origin)


def _convert_lists(array: pa.Array, origin: _ArrayOrigin, leaf: Leaf, share: Share) -> JaggedTensor:
    if array.null_count:
        raise origin.null_error(array, origin.call_code("fill_null([])"), "null lists")
    offsets, values = array.offsets, array.values
    if offsets.type != pa.int64():
        offsets = offsets.cast(pa.int64())
    bounds = numbers(offsets)
    start, stop = int(bounds[0]), int(bounds[-1])
    if start or stop != len(values):
        values = values.slice(start, stop - start)
    if start:
        bounds = bounds - start
    if values.type.id in NUMBERS and not values.null_count:
        items = share(values)
    else:
        inner = origin.inside(lambda i: int(np.searchsorted(bounds, i, side="right")) - 1, "list")
        items = _convert(values, inner, leaf, share)
    if share is numbers:
        return JaggedTensor(items, bounds)
    return JaggedTensor(items, share(from_numbers(bounds) if start else offsets))


def _convert_lists_each(
    lists: Mapping[str, pa.Array], keys: Keys | None, leaf: Leaf, share: Share
) -> dict[str, JaggedTensor]:
    """Convert large lists of equal length, with the offsets of all of them at once.

    NumPy releases the GIL for each array. With other threads, getting it back takes longer than the subtraction.
    """
    rows = len(next(iter(lists.values()))) + 1
    offsets = [memoryview(each.buffers()[1])[8 * each.offset : 8 * (each.offset + rows)] for each in lists.values()]
    bounds = np.frombuffer(b"".join(offsets), np.int64).reshape(len(lists), rows)
    starts, stops, bounds = bounds[:, 0].tolist(), bounds[:, -1].tolist(), bounds - bounds[:, :1]
    made = {}
    for (name, column), start, stop, own in zip(lists.items(), starts, stops, bounds, strict=True):
        values = column.values.slice(start, stop - start)
        if column.null_count or values.null_count or values.type.id not in NUMBERS:
            made[name] = _convert_lists(column, _ArrayOrigin(name, keys), leaf, share)
        elif start and share is numbers:
            made[name] = JaggedTensor(share(values), own)
        else:
            made[name] = JaggedTensor(share(values), share(own if start else column.offsets))
    return made


def _convert_fixed_lists(array: pa.Array, origin: _ArrayOrigin, leaf: Leaf, share: Share) -> Any:
    size = array.type.list_size
    if array.null_count:
        raise origin.null_error(array, origin.call_code(f"fill_null(a list of {size})"), "null lists")
    values = array.values.slice(array.offset * size, len(array) * size)
    inner = origin.inside(lambda i: i // size, "arr")
    children = _convert(values, inner, leaf, share)
    if hasattr(children, "reshape"):
        return children.reshape(len(array), size, *children.shape[1:])
    return JaggedTensor(children, share(from_numbers(np.arange(len(array) + 1, dtype=np.int64) * size)))


def _numpy_leaf(array: pa.Array, origin: _ArrayOrigin) -> Any:
    kind = array.type
    if pt.is_boolean(kind) and array.null_count:
        raise origin.null_error(array, _fill_hint(origin))
    if pt.is_boolean(kind):
        return numbers(array.cast(pa.uint8())).view(np.bool_).copy()
    if pt.is_timestamp(kind) or pt.is_date(kind) or pt.is_duration(kind):
        return array.to_numpy(zero_copy_only=False)
    if pt.is_time(kind):
        return (
            array.view(integer_type(kind)).cast(pa.int64()).cast(pa.duration(kind.unit)).to_numpy(zero_copy_only=False)
        )
    if pt.is_null(kind):
        return np.full(len(array), np.nan)
    values = np.empty(len(array), dtype=object)
    values[:] = array.to_pylist()
    return values


def _torch_leaf(array: pa.Array, origin: _ArrayOrigin) -> Any:
    import torch
    from torch.utils.dlpack import from_dlpack

    kind = array.type
    if pt.is_boolean(kind):
        return torch.from_numpy(_numpy_leaf(array, origin))
    if pt.is_temporal(kind) and not pt.is_interval(kind):
        if array.null_count:
            raise origin.null_error(array, _fill_hint(origin))
        ints = array.view(integer_type(kind))
        return from_dlpack(ints if pt.is_int64(ints.type) else ints.cast(pa.int64()))
    if pt.is_null(kind):
        return torch.full((len(array),), torch.nan, dtype=torch.float64)
    if pt.is_decimal(kind) or pt.is_interval(kind):
        raise PipelineError(
            f"column {origin.name!r} of {kind} has no torch dtype",
            fix=f"cast it: {origin.call_code('cast(polars.Float64)')}, or drop it",
        )
    return array.to_pylist()


def torch_holds(dtype: np.dtype[Any]) -> bool:
    """Whether torch has a dtype for these numbers; it has none for long doubles."""
    return dtype.kind in "biufc" and dtype.itemsize <= (16 if dtype.kind == "c" else 8)


def _tensor(values: np.ndarray[Any, Any], name: str) -> Any:
    """Make a tensor of a column's ndarray."""
    if values.dtype.kind in "mM":
        if np.isnat(values).any():
            rows = np.isnat(values.reshape(len(values), -1)).any(axis=1)
            raise RowError(
                f"column {name!r} of {values.dtype} has NaT (first at row {int(np.argmax(rows))} of the batch)",
                fix=f"map {name!r} to numbers first",
            )
        values = values.view(np.int64)
    if not torch_holds(values.dtype):
        raise PipelineError(f"column {name!r} of {values.dtype} has no torch dtype", fix=f"map it, or drop({name!r})")
    return tensor_of(values)


def tensor_of(values: np.ndarray[Any, Any]) -> Any:
    """Make a tensor that shares the memory of an ndarray of numbers, even of a read-only one."""
    import torch
    from torch.utils.dlpack import from_dlpack

    if not values.dtype.isnative or any(stride < 0 for stride in values.strides):
        values = values.astype(values.dtype.newbyteorder("="), order="C")
    if values.flags.writeable:
        return torch.from_numpy(values)
    # torch warns about read-only memory. Arrow's exporter accepts it for arrays of plain integers.
    flat = np.ascontiguousarray(values).reshape(-1)
    raw = pa.Array.from_buffers(pa.uint8(), flat.nbytes, [None, pa.py_buffer(flat.view(np.uint8))])
    dtype = getattr(torch, values.dtype.name)
    return from_dlpack(raw).view(dtype).reshape(values.shape)


def _fill_hint(origin: _ArrayOrigin) -> str:
    filled = origin.call_code("fill_null(value)")
    return filled if origin.path else f"{filled}, or .cast(polars.Float64) to have NaN for them"
