"""Number the distinct rows of columns in the order of their first occurrence.

Rows are equal if their bits are equal: a NaN equals a NaN of the same bits, 0.0 differs from -0.0, and a null list
differs from an empty one. A list of numbers is viewed as one binary value without a copy. Arrow's
``dictionary_encode`` numbers these values exactly, without sorting. If most rows equal the previous row, only rows
that differ from it are numbered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from cedar.core.boundary import canonical_type, validity_bits
from cedar.core.columns import from_array, from_numbers, numbers

Codes = npt.NDArray[np.int64]


def distinct(columns: Sequence[pa.Array]) -> tuple[npt.NDArray[np.int32], Codes]:
    """Number the distinct rows; return the number of each row, and the row where each number first occurs.

    Args:
        columns: Arrow arrays of equal length, at least one.

    Returns:
        (inverse int32[rows], first int64[distinct rows]): ``first`` ascends.

    Examples:
        >>> import pyarrow as pa
        >>> inverse, first = distinct([pa.array([[1, 2], [1, 2], [], None])])
        >>> inverse.tolist(), first.tolist()
        ([0, 0, 1, 2], [0, 2, 3])
    """
    inverse, first, _ = distinct_rows(columns)
    return inverse, first


def distinct_rows(columns: Sequence[pa.Array]) -> tuple[npt.NDArray[np.int32], Codes, list[pa.Array | None]]:
    """Return the results of ``distinct`` and each column's values in the rows ``first``, if available at no cost.

    These values are available for lists of numbers without nulls that have as many distinct values as there are
    distinct rows. They are None for other columns, and for all columns if all rows are distinct.

    Examples:
        >>> import pyarrow as pa
        >>> lists = pa.array([[1, 2], [1, 2], [3]], pa.large_list(pa.int64()))
        >>> distinct_rows([lists])[2][0].to_pylist()
        [[1, 2], [3]]
    """
    views = [_without_nulls(_comparable(column)) for column in columns]
    changed = _changed_rows(views)
    if changed is not None:
        index = from_numbers(changed)
        views = [view.take(index) for view in views]
    codes, count = np.zeros(len(views[0]), dtype=np.int64), 1
    dictionaries: list[pa.Array] = []  # the distinct values of each view
    for view in views:
        if dictionaries and count == len(codes):
            dictionaries.append(view)  # all rows differ already
            continue
        codes, count, values = _refine(codes, count, view)
        dictionaries.append(values)
    first = firsts(codes, count)
    if changed is not None:
        begins = np.zeros(len(columns[0]), dtype=np.int64)
        begins[changed] = 1
        codes, first = codes[np.cumsum(begins) - 1], changed[first]
    if count == len(codes):
        return codes.astype(np.int32), first, [None] * len(columns)
    # There are as many distinct values as distinct rows, both in order of first occurrence, so they match.
    stored = [_to_lists(c, h) if len(h) == count else None for c, h in zip(columns, dictionaries, strict=True)]
    return codes.astype(np.int32), first, stored


def repeated(columns: Sequence[pa.Array]) -> tuple[npt.NDArray[np.int32], Codes] | None:
    """Return ``distinct`` for rows that mostly differ, or None if all differ, which a few columns often show.

    Examples:
        >>> import pyarrow as pa
        >>> repeated([pa.array([1, 2, 1]), pa.array([5, 5, 6])])
        >>> inverse, first = repeated([pa.array([1, 2, 1])])
        >>> inverse.tolist(), first.tolist()
        ([0, 1, 0], [0, 1])
    """
    rows = len(columns[0])
    codes, count = np.zeros(rows, dtype=np.int64), min(rows, 1)
    for column in columns:
        if count == rows:
            return None
        codes, count, _ = _refine(codes, count, _without_nulls(_comparable(column)))
    return None if count == rows else (codes.astype(np.int32), firsts(codes, count))


def _changed_rows(views: Sequence[pa.Array]) -> Codes | None:
    """Return the rows that differ from the previous row; None if nearly all do, and skipping repeats saves nothing."""
    rows = len(views[0])
    if rows < 2:
        return None
    import pyarrow.compute as pc  # this import takes a tenth of a worker's start time, and few workers need it

    same = np.full((rows + 6) // 8, 255, dtype=np.uint8)
    for view in views:
        equal = pc.equal(view.slice(1), view.slice(0, rows - 1)).buffers()[1]
        same &= np.frombuffer(equal, dtype=np.uint8, count=len(same))
        if 8 * int(np.bitwise_count(same).sum()) < rows:
            return None
    bits = np.unpackbits(same, count=rows - 1, bitorder="little")
    return np.flatnonzero(np.concatenate([[True], bits == 0]))


def _refine(codes: Codes, count: int, view: pa.Array) -> tuple[Codes, int, pa.Array]:
    """Number the rows by one more view; return the numbers, their count, and the view's distinct values."""
    encoded = view.dictionary_encode()
    more, others = numbers(encoded.indices).astype(np.int64), len(encoded.dictionary)
    if count <= 1:
        return more, others, encoded.dictionary
    if count != others or not np.array_equal(codes, more):  # the view splits rows that were equal before
        codes, count = _dictionary_numbers(from_numbers(codes * others + more))
    return codes, count, encoded.dictionary


def firsts(codes: npt.NDArray[Any], count: int) -> Codes:
    """Return int64[count], the row where each number first occurs; 0 for a number that does not occur."""
    first = np.zeros(count, dtype=np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return first


def renumber(inverse: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return (``inverse`` renumbered in the order of first occurrence, the old number of each new one)."""
    encoded = from_array(inverse).dictionary_encode()
    return numbers(encoded.indices), numbers(encoded.dictionary)


def _without_nulls(view: pa.Array) -> pa.Array:
    """Return a view without nulls that Arrow can compare: binary values or integers. Other values are numbered."""
    kind = view.type
    plain = pt.is_large_binary(kind) or pt.is_integer(kind)
    return view if plain and not view.null_count else from_numbers(_dictionary_numbers(view)[0])


def _to_lists(column: pa.Array, rows: pa.Array) -> pa.Array | None:
    """Convert rows of a view back to lists; None for nulls, and for lists that do not hold numbers."""
    kind = column.type
    number = pt.is_large_list(kind) and (pt.is_integer(kind.value_type) or pt.is_floating(kind.value_type))
    if not number or column.null_count or column.values.null_count or not len(rows):
        return None
    width = kind.value_type.bit_width // 8
    offsets = np.frombuffer(rows.buffers()[1], dtype=np.int64, count=len(rows) + 1, offset=rows.offset * 8) // width
    items = pa.Array.from_buffers(kind.value_type, int(offsets[-1]), [None, rows.buffers()[2]])
    return pa.Array.from_buffers(kind, len(rows), [None, pa.py_buffer(offsets)], children=[items])


def _dictionary_numbers(array: pa.Array) -> tuple[Codes, int]:
    encoded = array.dictionary_encode(null_encoding="encode")
    return numbers(encoded.indices).astype(np.int64), len(encoded.dictionary)


def _comparable(array: pa.Array) -> pa.Array:
    """Return an array for ``dictionary_encode`` whose values are equal if those of ``array`` have equal bits."""
    kind = array.type
    if pt.is_large_list(kind) or pt.is_list(kind):
        offsets = list_offsets(array)
        start, stop = (int(offsets[0]), int(offsets[-1])) if len(array) else (0, 0)
        return _as_binary(array, offsets - start, array.values.slice(start, stop - start))
    if pt.is_fixed_size_list(kind):
        size = kind.list_size
        offsets = np.arange(len(array) + 1, dtype=np.int64) * size
        return _as_binary(array, offsets, array.values.slice(array.offset * size, len(array) * size))
    if pt.is_struct(kind):
        fields = array.flatten()
        codes = distinct(fields)[0] if fields else np.zeros(len(array), dtype=np.int32)
        missing = ~array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
        return pa.array(codes, mask=missing)
    if pt.is_floating(kind):
        return array.view({16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[kind.bit_width])
    if pt.is_null(kind):
        return pa.array(np.zeros(len(array), dtype=np.int8))
    plain = canonical_type(kind)
    return array if plain == kind else array.cast(plain)


def _as_binary(array: pa.Array, offsets: Codes, items: pa.Array) -> pa.Array:
    """Return lists as binary values over the memory of their items; items without a fixed width become numbers."""
    kind, width, data = items.type, 8, pa.py_buffer(b"")
    fixed = pt.is_integer(kind) or pt.is_floating(kind) or (pt.is_temporal(kind) and not pt.is_interval(kind))
    if len(items) and fixed and not items.null_count:
        width = kind.bit_width // 8
        data = items.buffers()[1].slice(items.offset * width, len(items) * width)
    elif len(items):
        data = pa.py_buffer(_dictionary_numbers(_comparable(items))[0])
    buffers = [validity_bits(array), pa.py_buffer(offsets * width), data]
    return pa.Array.from_buffers(pa.large_binary(), len(array), buffers)


def list_offsets(array: pa.Array) -> Codes:
    """Return int64[rows + 1], the offsets of the lists of a column in its values."""
    if not len(array):
        return np.zeros(1, dtype=np.int64)
    return numbers(array.offsets).astype(np.int64, copy=False)
