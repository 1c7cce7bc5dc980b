"""Column kinds, and the few things every kind can do.

A column is an Arrow array (numbers, strings, lists, structs), a fixed-shape ndarray of shape (rows, ...), an ndarray of
Python objects if nothing else fits, or one of a group whose rows repeat (``groups``). Strings, binaries and lists
have 64-bit offsets throughout, and dictionaries are decoded, so that a column has one type wherever it comes
from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cedar.core import buffers
from cedar.core.arrow import numbers, of_numbers
from cedar.core.jagged import JaggedTensor

Column: TypeAlias = Any  # pa.Array | np.ndarray | GroupColumn
Index: TypeAlias = npt.NDArray[np.int64]

_OBJECT = 64  # bytes that an object is taken to have
_LARGE = 1 << 20  # bytes, from which on memory is worth using again
_MANY = 512  # rows, from which on to gather lists in NumPy's way takes less than its calls


@dataclass(frozen=True)
class TensorType:
    """A fixed-shape ndarray per row: ``shape`` of one row and its dtype."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class ObjectType:
    """Any Python object."""

    def __str__(self) -> str:
        return "object"


@dataclass(frozen=True)
class UnknownType:
    """A type that only a run can tell."""

    def __str__(self) -> str:
        return "?"


OBJECT = ObjectType()
UNKNOWN = UnknownType()
ColumnType: TypeAlias = Any  # pa.DataType | TensorType | ObjectType | UnknownType


def type_of(column: Column) -> ColumnType:
    """The type of a column; of a group's, that of its values."""
    if not isinstance(column, np.ndarray):
        return column.type
    if column.dtype == object:
        return OBJECT
    return TensorType(tuple(column.shape[1:]), str(column.dtype))


def objects(values: Sequence[Any]) -> npt.NDArray[np.object_]:
    """A column of Python objects."""
    column = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        column[i] = value
    return column


def take(column: Column, index: Index) -> Column:
    """The rows at ``index``, in that order."""
    if isinstance(column, pa.Array):
        return take_arrays([column], index)[0]
    if not isinstance(column, np.ndarray):
        return column.take(index)
    if column.ndim == 1 or column.dtype == object or len(index) * column[:1].nbytes < _LARGE:
        return column[index]
    made = buffers.empty((len(index), *column.shape[1:]), column.dtype)
    return np.take(column, index, axis=0, out=made, mode="wrap")  # other modes copy it once more


def take_arrays(arrays: Sequence[pa.Array], index: Index) -> list[pa.Array]:
    """The rows at ``index`` of Arrow arrays of one length; none of them is negative.

    Examples:
        >>> [array.to_pylist() for array in take_arrays([pa.array([7, 8]), pa.array(["a", None])], np.array([1, 0]))]
        [[8, 7], [None, 'a']]
    """
    scattered = len(index) >= _MANY and not bool((index[1:] >= index[:-1]).all())
    if scattered and (apart := {i for i, a in enumerate(arrays) if pa.types.is_large_list(a.type) and len(a)}):
        rest = iter(take_arrays([array for i, array in enumerate(arrays) if i not in apart], index))
        return [_take_lists(array, index) if i in apart else next(rest) for i, array in enumerate(arrays)]
    # All in one call: tables may be thousands of columns wide.
    batch = pa.RecordBatch.from_arrays(arrays, names=[""] * len(arrays)) if arrays else None
    return [] if batch is None else batch.take(of_numbers(index)).columns


def _take_lists(lists: pa.Array, index: Index) -> pa.Array:
    """As ``lists.take(index)``, in half the time where rows lie all over memory: Arrow waits for each list in turn."""
    ends = numbers(lists.offsets)
    starts = ends.take(index)
    lengths = ends.take(index + 1)
    lengths -= starts
    valid = None
    if lists.null_count:  # below a null, a list may have items
        alive = lists.is_valid().take(of_numbers(index))
        lengths[~np.asarray(alive)] = 0
        valid = alive.buffers()[1]
    offsets = np.zeros(len(index) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    starts -= offsets[:-1]
    places = np.repeat(starts, lengths)
    places += np.arange(len(places))
    items = take(lists.values, places)
    return pa.Array.from_buffers(lists.type, len(index), [valid, pa.py_buffer(offsets)], children=[items])


def cut(column: Column, start: int, stop: int) -> Column:
    """Rows ``start`` to ``stop``, without a copy."""
    if isinstance(column, pa.Array):
        return column.slice(start, stop - start)
    return column[start:stop] if isinstance(column, np.ndarray) else column.cut(start, stop)


def concat(columns: Sequence[Column]) -> Column:
    """Columns of one type, one after the other."""
    if len(columns) == 1:
        return columns[0]
    if isinstance(columns[0], np.ndarray):
        if columns[0].ndim == 1 or columns[0].dtype == object:
            return np.concatenate(columns)
        if (whole := buffers.joined(columns)) is not None:
            return whole
        made = buffers.empty((sum(map(len, columns)), *columns[0].shape[1:]), columns[0].dtype)
        return np.concatenate(columns, out=made)
    return pa.concat_arrays([c if isinstance(c, pa.Array) else c.plain() for c in columns])


def copied(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same numbers in memory of their own."""
    made = buffers.empty(array.shape, array.dtype)
    np.copyto(made, array)
    return made


def detached(column: Column) -> Column:
    """The same rows in memory that is not shared; strings, which nothing can write into, stay where they are."""
    if isinstance(column, np.ndarray):
        return copied(column)
    if (
        not isinstance(column, pa.Array)
        or pa.types.is_large_string(column.type)
        or pa.types.is_large_binary(column.type)
    ):
        return column
    return pa.concat_arrays([column[:0], column])


def writeable(column: Column) -> Column:
    """A column whose array, if it is one, may be written into: a copy of one that others see."""
    shared = isinstance(column, np.ndarray) and not column.flags.writeable and not column.dtype.hasobject
    return copied(column) if shared else column


def nbytes(column: Column) -> int:
    """The bytes that a column's rows take, also in the form that a batch is delivered in; objects are estimated."""
    if isinstance(column, pa.Array):
        return _array_bytes(column)
    if isinstance(column, dict):
        return sum(nbytes_each(column.values()))
    if isinstance(column, JaggedTensor):
        return nbytes(column.values) + nbytes(column.offsets)
    if isinstance(column, list) or (isinstance(column, np.ndarray) and column.dtype == object):
        return sum(map(_object_bytes, column[:64])) * max(1, len(column) // 64)
    return int(column.nbytes)


def _object_bytes(value: Any) -> int:
    if isinstance(value, JaggedTensor):
        return nbytes(value)
    if isinstance(value, list | tuple | dict):
        return _OBJECT + sum(map(_object_bytes, value.values() if isinstance(value, dict) else value[:64]))
    size = getattr(value, "nbytes", _OBJECT)  # of a class, or some objects: a function
    return size if isinstance(size, int) else _OBJECT


def nbytes_each(columns: Iterable[Column]) -> list[int]:
    """``nbytes`` of each, at once: tables may be thousands of columns of numbers wide."""
    sizes = []
    for column in columns:
        bits = _bits(column.type) if isinstance(column, pa.Array) else None
        if bits is None:
            sizes.append(nbytes(column))
        else:
            rows = len(column)
            sizes.append(rows * bits // 8 + (rows // 8 if column.buffers()[0] is not None else 0))
    return sizes


@lru_cache(maxsize=1024)
def _bits(kind: pa.DataType) -> int | None:
    """Of a value, where all take as many."""
    fixed = pa.types.is_primitive(kind) or pa.types.is_fixed_size_binary(kind)
    return int(kind.bit_width) if fixed else None


def _array_bytes(array: pa.Array) -> int:
    """As ``array.nbytes``, which releases the GIL: next to threads that want it, each time costs milliseconds."""
    kind, rows, buffers_held = array.type, len(array), array.buffers()
    mask = rows // 8 if buffers_held and buffers_held[0] is not None else 0
    bits = _bits(kind)
    if bits is not None:
        return mask + rows * bits // 8
    if pa.types.is_large_list(kind) or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        if not rows:
            return 0
        ends = np.frombuffer(buffers_held[1], dtype=np.int64, count=array.offset + rows + 1)
        first, last = int(ends[array.offset]), int(ends[array.offset + rows])
        inside = _array_bytes(array.values.slice(first, last - first)) if pa.types.is_large_list(kind) else last - first
        return mask + 8 * rows + inside
    if pa.types.is_fixed_size_list(kind):
        return mask + _array_bytes(array.values.slice(array.offset * kind.list_size, rows * kind.list_size))
    if pa.types.is_struct(kind):
        return mask + sum(_array_bytes(array.field(i)) for i in range(kind.num_fields))
    return int(array.nbytes)


def blank(kind: ColumnType, n: int) -> Column:
    """``n`` rows of zeros, empty strings and empty lists: what ``last="pad"`` fills with."""
    if isinstance(kind, TensorType):
        return np.zeros((n, *kind.shape), dtype=kind.dtype)
    if kind is UNKNOWN:
        return pa.nulls(n)
    if not isinstance(kind, pa.DataType):
        return np.full(n, None, dtype=object)
    if pa.types.is_large_string(kind):
        return pa.array([""] * n, kind)
    if pa.types.is_large_binary(kind):
        return pa.array([b""] * n, kind)
    if pa.types.is_large_list(kind):
        return pa.array([[]] * n, kind)
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(blank(kind.value_type, n * kind.list_size), kind.list_size)
    if pa.types.is_struct(kind):
        if kind.num_fields == 0:
            return pa.array([{}] * n, kind)
        return pa.StructArray.from_arrays([blank(f.type, n) for f in kind], fields=list(kind))
    if pa.types.is_null(kind):
        return pa.nulls(n)
    return pa.Array.from_buffers(kind, n, [None, pa.py_buffer(bytes(-(-n * kind.bit_width // 8)))])
