"""Column kinds, and the operations that every kind has.

A column is an Arrow array (numbers, strings, lists, structs), a fixed-shape ndarray of shape (rows, ...), an ndarray of
Python objects if nothing else fits, or a ``GroupColumn`` whose rows repeat (see ``groups``). Strings, binaries and
lists have 64-bit offsets, and dictionaries are decoded, so that the type of a column does not depend on its
source.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cedar.core import buffers
from cedar.core.jagged import JaggedTensor, stretches

Column: TypeAlias = Any  # pa.Array | np.ndarray | GroupColumn
Index: TypeAlias = npt.NDArray[np.int64]

_OBJECT_BYTES = 64  # assumed size of each Python object, in bytes
_MIN_REUSED_BYTES = 1 << 20  # smallest array whose memory is worth reusing
_MIN_ROWS_TO_GATHER = 512  # minimum rows for which NumPy gathers lists faster than Arrow, despite its call overhead


@dataclass(frozen=True)
class TensorType:
    """The type of a column with an ndarray of fixed shape per row: ``shape`` of one row, and the dtype."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class ObjectType:
    """The type of a column of Python objects."""

    def __str__(self) -> str:
        return "object"


@dataclass(frozen=True)
class UnknownType:
    """The type of a column that is unknown until the pipeline runs."""

    def __str__(self) -> str:
        return "?"


OBJECT = ObjectType()
UNKNOWN = UnknownType()
ColumnType: TypeAlias = Any  # pa.DataType | TensorType | ObjectType | UnknownType


def type_of(column: Column) -> ColumnType:
    """Return the type of a column; for a GroupColumn, the type of its values."""
    if not isinstance(column, np.ndarray):
        return column.type
    if column.dtype == object:
        return OBJECT
    return TensorType(tuple(column.shape[1:]), str(column.dtype))


@lru_cache(maxsize=1024)
def integer_type(kind: pa.DataType) -> pa.DataType:
    """Return the type as which ``array.view`` shows the times and durations of a column as integers.

    Examples:
        >>> integer_type(pa.timestamp("ns")), integer_type(pa.date32()), integer_type(pa.bool_())
        (DataType(int64), DataType(int32), DataType(bool))
    """
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        return pa.int64() if kind.bit_width == 64 else pa.int32()
    if pa.types.is_large_list(kind):
        return pa.large_list(integer_type(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(integer_type(kind.value_type), kind.list_size)
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, integer_type(field.type)) for field in kind])
    return kind


def unused_name(name: str, names: Collection[str]) -> str:
    """Return ``name``, with underscores appended until no column of ``names`` has it.

    Examples:
        >>> unused_name("x", {"x", "x_"})
        'x__'
    """
    while name in names:
        name += "_"
    return name


def objects(values: Sequence[Any]) -> npt.NDArray[np.object_]:
    """Make a column of Python objects."""
    column = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        column[i] = value
    return column


def take(column: Column, index: Index) -> Column:
    """Return the rows at ``index``, in that order."""
    if isinstance(column, pa.Array):
        return take_arrays([column], index)[0]
    if not isinstance(column, np.ndarray):
        return column.take(index)
    if column.ndim == 1 or column.dtype == object or len(index) * column[:1].nbytes < _MIN_REUSED_BYTES:
        return column[index]
    result = buffers.empty((len(index), *column.shape[1:]), column.dtype)
    return np.take(column, index, axis=0, out=result, mode="wrap")  # other modes copy once more


def take_arrays(arrays: Sequence[pa.Array], index: Index) -> list[pa.Array]:
    """Return the rows at ``index`` (not negative) of Arrow arrays of equal length.

    Examples:
        >>> [array.to_pylist() for array in take_arrays([pa.array([7, 8]), pa.array(["a", None])], np.array([1, 0]))]
        [[8, 7], [None, 'a']]
    """
    scattered = len(index) >= _MIN_ROWS_TO_GATHER and not bool((index[1:] >= index[:-1]).all())
    if scattered and (list_positions := {i for i, a in enumerate(arrays) if pa.types.is_large_list(a.type) and len(a)}):
        rest = iter(take_arrays([array for i, array in enumerate(arrays) if i not in list_positions], index))
        return [_take_lists(array, index) if i in list_positions else next(rest) for i, array in enumerate(arrays)]
    # Gather all arrays in one call, since tables can have thousands of columns.
    batch = pa.RecordBatch.from_arrays(arrays, names=[""] * len(arrays)) if arrays else None
    return [] if batch is None else batch.take(from_numbers(index)).columns


def _take_lists(lists: pa.Array, index: Index) -> pa.Array:
    """Return ``lists.take(index)`` in half the time if rows are scattered: Arrow copies one list at a time."""
    ends = numbers(lists.offsets)
    starts = ends.take(index)
    lengths = ends.take(index + 1)
    lengths -= starts
    valid = None
    if lists.null_count:  # a null list may still have items
        alive = lists.is_valid().take(from_numbers(index))
        lengths[~np.asarray(alive)] = 0
        valid = alive.buffers()[1]
    places, offsets = stretches(starts, lengths)
    items = take(lists.values, places)
    return pa.Array.from_buffers(lists.type, len(index), [valid, pa.py_buffer(offsets)], children=[items])


def cut(column: Column, start: int, stop: int) -> Column:
    """Return rows ``start`` to ``stop`` without a copy."""
    if isinstance(column, pa.Array):
        return column.slice(start, stop - start)
    return column[start:stop] if isinstance(column, np.ndarray) else column.cut(start, stop)


def concat(columns: Sequence[Column]) -> Column:
    """Concatenate columns of one type."""
    if len(columns) == 1:
        return columns[0]
    if isinstance(columns[0], np.ndarray):
        if columns[0].ndim == 1 or columns[0].dtype == object:
            return np.concatenate(columns)
        if (whole := buffers.joined(columns)) is not None:
            return whole
        result = buffers.empty((sum(map(len, columns)), *columns[0].shape[1:]), columns[0].dtype)
        return np.concatenate(columns, out=result)
    return pa.concat_arrays([c if isinstance(c, pa.Array) else c.plain() for c in columns])


def concat_arrays(parts: Sequence[Sequence[pa.Array]]) -> list[pa.Array]:
    """Concatenate the i-th arrays of all parts, for each i. One call for all arrays releases the GIL only once.

    Examples:
        >>> parts = [pa.array([7]), pa.array(["a"])], [pa.array([8]), pa.array(["b"])]
        >>> [array.to_pylist() for array in concat_arrays(parts)]
        [[7, 8], ['a', 'b']]
    """
    if len(parts) == 1:
        return list(parts[0])
    names = [""] * len(parts[0])
    whole = pa.concat_batches([pa.RecordBatch.from_arrays(arrays, names=names) for arrays in parts])
    return list(whole.columns)


def copied(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Copy an array into new memory."""
    result = buffers.empty(array.shape, array.dtype)
    np.copyto(result, array)
    return result


def detached(column: Column) -> Column:
    """Copy a column out of shared memory. Strings are not copied, since nothing can write to them."""
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
    """Return a column that may be written to. A read-only ndarray is copied, since its memory may be shared."""
    shared = isinstance(column, np.ndarray) and not column.flags.writeable and not column.dtype.hasobject
    return copied(column) if shared else column


def read_only(array: Any) -> Any:
    """Return a read-only view of an array, since a block may be shared, or processed again after a retry."""
    if isinstance(array, np.ndarray) and array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


def nbytes(column: Column) -> int:
    """Return the size in bytes of a column of a block or of a delivered batch. Sizes of objects are estimated."""
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
        return _OBJECT_BYTES + sum(map(_object_bytes, value.values() if isinstance(value, dict) else value[:64]))
    size = getattr(value, "nbytes", _OBJECT_BYTES)  # some objects, such as classes, have a function of this name
    return size if isinstance(size, int) else _OBJECT_BYTES


def nbytes_each(columns: Iterable[Column]) -> list[int]:
    """Return ``nbytes`` of each column quickly: tables can have thousands of numeric columns."""
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
    """Return the bits per value if all values of the type take the same number, else None."""
    fixed = pa.types.is_primitive(kind) or pa.types.is_fixed_size_binary(kind)
    return int(kind.bit_width) if fixed else None


def _array_bytes(array: pa.Array) -> int:
    """Compute ``array.nbytes`` without releasing the GIL, which takes milliseconds if other threads compete for it."""
    kind, rows, buffers_held = array.type, len(array), array.buffers()
    mask = rows // 8 if buffers_held and buffers_held[0] is not None else 0
    bits = _bits(kind)
    if bits is not None:
        return mask + rows * bits // 8
    lists = isinstance(kind, pa.LargeListType)
    if lists or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        if not rows:
            return 0
        ends = np.frombuffer(buffers_held[1], dtype=np.int64, count=array.offset + rows + 1)
        first, last = int(ends[array.offset]), int(ends[array.offset + rows])
        inside = _array_bytes(array.values.slice(first, last - first)) if lists else last - first
        return mask + 8 * rows + inside
    if pa.types.is_fixed_size_list(kind):
        return mask + _array_bytes(array.values.slice(array.offset * kind.list_size, rows * kind.list_size))
    if pa.types.is_struct(kind):
        return mask + sum(_array_bytes(array.field(i)) for i in range(kind.num_fields))
    return int(array.nbytes)


def blank(kind: ColumnType, n: int) -> Column:
    """Return ``n`` rows of zeros, empty strings and empty lists. ``last="pad"`` fills the last batch with them."""
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


# ---- NumPy and Arrow -------------------------------------------------------------------------------------------------

# Without ``pa.array`` and ``to_numpy``: the first call of either imports pandas if it is installed, which takes 40 MB
# and 0.25 s, or several seconds if other threads compete for the GIL. cedar does not need pandas.

# NumPy dtypes of the numeric Arrow types, by type id. Arrow, NumPy and torch store these values in the same way.
NUMBERS = {pa.from_numpy_dtype(each).id: np.dtype(each) for each in "i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8".split()}


def from_numbers(
    values: npt.NDArray[Any], kind: pa.DataType | None = None, missing: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """Convert integers or floats to an Arrow array that shares their memory.

    Args:
        values: a one-dimensional array.
        kind: the Arrow type, of the same width as the values; None means int64.
        missing: True where the result is null, whatever value is stored.

    Examples:
        >>> from_numbers(np.array([3, 1])).to_pylist()
        [3, 1]
        >>> from_numbers(np.array([3, 1]), missing=np.array([False, True])).to_pylist()
        [3, None]
    """
    kind = pa.int64() if kind is None else kind
    valid = None if missing is None else _packed(~missing)
    return pa.Array.from_buffers(
        kind, len(values), [valid, pa.py_buffer(np.ascontiguousarray(values, NUMBERS[kind.id]))]
    )


def from_flags(values: npt.NDArray[np.bool_]) -> pa.Array:
    """Convert booleans to an Arrow array.

    Examples:
        >>> from_flags(np.array([True, False])).to_pylist()
        [True, False]
    """
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, _packed(values)])


def _packed(flags: npt.NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def native(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array in the machine's byte order, in which Arrow and torch need it."""
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


def from_array(values: npt.NDArray[Any]) -> pa.Array:
    """Convert a one-dimensional ndarray to an Arrow array. Numeric arrays share memory with the result.

    Examples:
        >>> from_array(np.array([1.5])).type
        DataType(double)
    """
    if type(values) is not np.ndarray or values.dtype.kind not in "biuf" or not values.dtype.isnative:
        return pa.array(values)
    return from_flags(values) if values.dtype.kind == "b" else from_numbers(values, pa.from_numpy_dtype(values.dtype))


def from_strings(values: Sequence[str] | Sequence[bytes], kind: pa.DataType) -> pa.Array:
    """Convert strings or bytes, without None, to an array of type large_string or large_binary.

    Raises:
        UnicodeEncodeError: a string contains an unpaired surrogate.

    Examples:
        >>> from_strings(["a", ""], pa.large_string()).to_pylist()
        ['a', '']
    """
    parts = [value.encode() if isinstance(value, str) else value for value in values]
    offsets = np.zeros(len(parts) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), out=offsets[1:])
    return pa.Array.from_buffers(kind, len(parts), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(parts))])


def repeated(value: str, n: int) -> pa.Array:
    """Return a large_string array with ``n`` copies of a string.

    Examples:
        >>> repeated("a", 2).to_pylist()
        ['a', 'a']
    """
    content = value.encode()
    offsets = np.arange(n + 1, dtype=np.int64) * len(content)
    return pa.Array.from_buffers(pa.large_string(), n, [None, pa.py_buffer(offsets), pa.py_buffer(content * n)])


def floats(arrays: Sequence[pa.Array]) -> list[npt.NDArray[Any]]:
    """Copy float arrays, all of one length and each with at least one null, to ndarrays with NaN for nulls.

    Examples:
        >>> [values.tolist() for values in floats([pa.array([1.5, None]), pa.array([None, 2.5])])]
        [[1.5, nan], [nan, 2.5]]
    """
    width = len(arrays[0]) // 8 + 2  # enough bytes for the validity bits, even if they start inside a byte
    bits = [array.buffers()[0][array.offset // 8 :][:width].to_pybytes().ljust(width, b"\0") for array in arrays]
    valid = np.unpackbits(np.frombuffer(b"".join(bits), np.uint8).reshape(-1, width), axis=1, bitorder="little")
    copies = []
    for array, present in zip(arrays, valid, strict=True):
        kind, rows, first = NUMBERS[array.type.id], len(array), array.offset % 8
        values = np.frombuffer(array.buffers()[1], kind, rows, array.offset * kind.itemsize).copy()
        values[present[first : first + rows] == 0] = np.nan
        copies.append(values)
    return copies


def numbers(array: pa.Array) -> npt.NDArray[Any]:
    """Return the memory of an integer or float array as an ndarray; the values at nulls are undefined.

    Examples:
        >>> numbers(from_numbers(np.array([3, 1]))).tolist()
        [3, 1]
    """
    kind = NUMBERS[array.type.id]
    _, data = array.buffers()
    if data is None or not len(array):
        return np.empty(0, dtype=kind)
    return np.frombuffer(data, dtype=kind, count=len(array), offset=array.offset * kind.itemsize)
