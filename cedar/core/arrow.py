"""Convert NumPy values to Arrow arrays and back without ``pa.array`` and ``to_numpy``.

The first call of either Arrow function in a process imports pandas if it is installed. The import takes 40 MB and
0.25 s, or several seconds if other threads compete for the GIL. cedar does not need pandas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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
    valid = None if missing is None else _bits(~missing)
    return pa.Array.from_buffers(
        kind, len(values), [valid, pa.py_buffer(np.ascontiguousarray(values, NUMBERS[kind.id]))]
    )


def from_flags(values: npt.NDArray[np.bool_]) -> pa.Array:
    """Convert booleans to an Arrow array.

    Examples:
        >>> from_flags(np.array([True, False])).to_pylist()
        [True, False]
    """
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, _bits(values)])


def _bits(flags: npt.NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


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
