"""Arrow arrays made of plain values, and back, without ``pa.array`` and ``to_numpy``.

The first of those in a process imports pandas, where that is installed: a quarter of a second and 40 MB that nobody
needs, and seconds where it happens beside threads that want the GIL.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@lru_cache(maxsize=64)
def dtype_of(kind: pa.DataType) -> np.dtype[Any]:
    """The dtype of a type of numbers."""
    dtype: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
    return dtype


def of_numbers(
    values: npt.NDArray[Any], kind: pa.DataType | None = None, missing: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """Whole numbers or floats as an array of Arrow, which shares their memory.

    Args:
        values: of one dimension.
        kind: of Arrow, as wide as they are; None: int64.
        missing: where a null is, whatever stands there.

    Example:
        >>> of_numbers(np.array([3, 1])).to_pylist()
        [3, 1]
        >>> of_numbers(np.array([3, 1]), missing=np.array([False, True])).to_pylist()
        [3, None]
    """
    kind = pa.int64() if kind is None else kind
    valid = None if missing is None else _bits(~missing)
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(np.ascontiguousarray(values, dtype_of(kind)))])


def of_flags(values: npt.NDArray[np.bool_]) -> pa.Array:
    """Truth values as an array of Arrow.

    Example:
        >>> of_flags(np.array([True, False])).to_pylist()
        [True, False]
    """
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, _bits(values)])


def _bits(flags: npt.NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def of_array(values: npt.NDArray[Any]) -> pa.Array:
    """An array of one dimension as one of Arrow, which shares the memory of numbers.

    Example:
        >>> of_array(np.array([1.5])).type
        DataType(double)
    """
    if type(values) is not np.ndarray or values.dtype.kind not in "biuf" or not values.dtype.isnative:
        return pa.array(values)
    return of_flags(values) if values.dtype.kind == "b" else of_numbers(values, pa.from_numpy_dtype(values.dtype))


def of_texts(values: Sequence[str] | Sequence[bytes], kind: pa.DataType) -> pa.Array:
    """Texts, or bytes, as an array of large_string or large_binary; none of them is None.

    Raises:
        UnicodeEncodeError: a text with half of a surrogate pair.

    Example:
        >>> of_texts(["a", ""], pa.large_string()).to_pylist()
        ['a', '']
    """
    parts = [value.encode() if isinstance(value, str) else value for value in values]
    offsets = np.zeros(len(parts) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), out=offsets[1:])
    return pa.Array.from_buffers(kind, len(parts), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(parts))])


def floats(array: pa.Array) -> npt.NDArray[Any]:
    """A copy of floats, with NaN where a null is.

    Example:
        >>> floats(pa.array([1.5, None])).tolist()
        [1.5, nan]
    """
    bits, data = array.buffers()
    kind, start, stop = dtype_of(array.type), array.offset, array.offset + len(array)
    values = np.frombuffer(data, kind, count=stop)[start:].copy()
    if bits is not None:
        values[np.unpackbits(np.frombuffer(bits, np.uint8), count=stop, bitorder="little")[start:] == 0] = np.nan
    return values


def numbers(array: pa.Array) -> npt.NDArray[Any]:
    """Whole numbers or floats as they lie in memory; in the place of a null is anything.

    Example:
        >>> numbers(of_numbers(np.array([3, 1]))).tolist()
        [3, 1]
    """
    kind = dtype_of(array.type)
    _, data = array.buffers()
    if data is None or not len(array):
        return np.empty(0, dtype=kind)
    return np.frombuffer(data, dtype=kind, count=len(array), offset=array.offset * kind.itemsize)
