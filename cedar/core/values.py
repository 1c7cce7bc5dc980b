"""Strict conversion of Python values to a column of a fixed type.

Arrow is lenient: it truncates ``1.0`` to an int64, and drops unknown keys of a struct and the time of day of a date.
The functions of this module either preserve a value's meaning or raise ``ValueMismatch``.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
import reprlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cedar.core import buffers
from cedar.core.columns import (
    NUMBERS,
    OBJECT,
    UNKNOWN,
    Column,
    ColumnType,
    TensorType,
    from_array,
    from_flags,
    from_numbers,
    from_strings,
    native,
    objects,
)
from cedar.core.packages import loaded

_FAILURES = (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError)


class ValueMismatch(Exception):
    """Raised if a value does not fit the type of its column. ``index`` is its position among the values."""

    def __init__(self, index: int, message: str) -> None:
        super().__init__(index, message)
        self.index = index
        self.message = message

    def __str__(self) -> str:
        return self.message


class _SomeMismatch(Exception):
    """Raised if some value does not fit. A second pass finds out which one."""


def build_column(values: Sequence[Any], kind: ColumnType, out: npt.NDArray[Any] | None = None) -> Column:
    """Build a column of type ``kind`` from ``values``: an Arrow array, an ndarray (len(values), ...), or objects.

    Ints widen to floats if that is exact, and floats round to the float type. None is a null in Arrow types. An ndarray
    result is written to ``out`` if that is given.

    Raises:
        ValueMismatch: the first value that does not fit.

    Examples:
        >>> import pyarrow as pa
        >>> build_column([1, 2.5, None], pa.float64()).to_pylist()
        [1.0, 2.5, None]
    """
    try:
        return _column(values, kind, out)
    except (_SomeMismatch, *_FAILURES) as error:
        for index, message in _misfits(values, kind):
            raise ValueMismatch(index, message) from error
        raise ValueMismatch(0, f"the values do not fit {type_name(kind)} together: {error}") from error


def misfits(values: Sequence[Any], kind: ColumnType) -> dict[int, str]:
    """Describe what is wrong with each value that does not fit, by its index."""
    return dict(_misfits(values, kind))


def _misfits(values: Sequence[Any], kind: ColumnType) -> Iterator[tuple[int, str]]:
    for index, value in enumerate(values):
        try:
            _column([value], kind)
        except (_SomeMismatch, *_FAILURES) as error:
            reason = f": {error}" if isinstance(error, _SomeMismatch) and str(error) else ""
            yield index, f"{describe(value)} does not fit {type_name(kind)}{reason}"


def describe(value: Any) -> str:
    """Describe a value and its type in a few words."""
    if value is None:
        return "None"
    if hasattr(value, "dtype") and hasattr(value, "shape") and len(value.shape):
        kind = "an ndarray" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
        return f"{kind} {str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"
    try:
        text = reprlib.repr(value)
    except Exception:  # noqa: BLE001 - a failing __repr__ must not hide the reported error
        text = "..."
    return f"{text} ({type(value).__name__})"


def type_name(kind: ColumnType) -> str:
    """Return the name of a type as NumPy users know it: float64 for Arrow's double."""
    text = str(kind)
    for arrow, numpy in (("halffloat", "float16"), ("double", "float64"), ("float", "float32")):
        text = re.sub(rf"\b{arrow}\b", numpy, text)
    return text


def is_masked(kind: type) -> bool:
    """Whether a type is that of masked arrays, without importing their module, which is slow and rarely needed."""
    masked = loaded("numpy.ma")
    return masked is not None and issubclass(kind, masked.MaskedArray)


def is_tensor(kind: type) -> bool:
    """Whether ``kind`` is torch.Tensor or a subclass, without importing torch."""
    return hasattr(kind, "detach") and hasattr(kind, "cpu")


def plain(values: Sequence[Any]) -> Sequence[Any]:
    """Convert tensors to ndarrays, 0-d arrays to NumPy scalars, and Arrow scalars and NumPy days to Python values."""
    types = (np.ndarray, np.datetime64, pa.Scalar)
    foreign = {t for t in set(map(type, values)) if issubclass(t, types) or is_tensor(t)}
    return [_plain(v) if type(v) in foreign else v for v in values] if foreign else values


def _plain(value: Any) -> Any:
    if isinstance(value, pa.Scalar):
        return value.as_py()
    if isinstance(value, np.datetime64):  # Arrow infers date32 from days, but cannot convert them
        day = value.item() if value.dtype == "datetime64[D]" else value
        return value if isinstance(day, int) else day
    if not isinstance(value, np.ndarray):
        value = value.detach().cpu().numpy()
    return value[()] if value.ndim == 0 else value


def _column(values: Sequence[Any], kind: ColumnType, out: npt.NDArray[Any] | None = None) -> Column:
    if kind == OBJECT:
        return objects(values)
    if isinstance(kind, TensorType):
        return _tensors(values, kind, out)
    assert kind != UNKNOWN, "the type must be fixed before a column is built"
    return _arrow(values, kind)


# ---- fixed-shape arrays --------------------------------------------------------------------------------------------


def _tensors(values: Sequence[Any], kind: TensorType, out: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
    dtype = np.dtype(kind.dtype)
    if not len(values):
        return np.empty((0, *kind.shape), dtype=dtype)
    types = set(map(type, values))
    arrays = values if types == {np.ndarray} else [_as_array(v, dtype) for v in plain(values)]
    if {a.shape for a in arrays} != {kind.shape}:
        raise _SomeMismatch
    for other in {a.dtype for a in arrays}:
        if not np.can_cast(other, dtype, "safe") or (other.kind == "b") != (dtype.kind == "b"):
            raise _SomeMismatch(f"convert it with .astype({dtype.name!r})" if other.kind in "biuf" else "")
    if dtype.kind in "fc" and any(a.dtype.kind in "iu" and not _same(a, a.astype(dtype)) for a in arrays):
        raise _SomeMismatch("an int beyond what the float type holds exactly")
    if dtype.kind in "mM" and any(
        a.dtype != dtype and (a.astype(dtype).astype(a.dtype).view(np.int64) != a.view(np.int64)).any() for a in arrays
    ):
        raise _SomeMismatch("a time beyond what the unit holds")
    shape = (len(values), *kind.shape)
    result = buffers.empty(shape, dtype) if out is None else out
    if not kind.shape:
        return np.concatenate([a.reshape(1) for a in arrays], out=result)
    np.concatenate(arrays, out=result.reshape((len(values) * kind.shape[0], *kind.shape[1:])))
    return result


def _as_array(value: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Convert one value to an array; Python numbers get ``dtype`` if that keeps their meaning, as in Arrow columns."""
    if is_masked(type(value)):
        raise _SomeMismatch("masked arrays are not supported: fill them first")
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    if not isinstance(value, (list, tuple, int, float, complex)):
        raise _SomeMismatch
    array = np.array(value)
    if array.dtype.kind == dtype.kind == "b":
        return array
    if array.dtype.kind not in "iufc" or dtype.kind not in "iufc":
        raise _SomeMismatch
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
        rounds = array.dtype.kind == dtype.kind == "f" and not np.any(np.isinf(cast) & np.isfinite(array))
    whole = array.dtype.kind != "f" and _same(array, cast)
    if not rounds and not whole:
        raise _SomeMismatch
    return cast


def _same(array: npt.NDArray[Any], cast: npt.NDArray[Any]) -> bool:
    """Whether a cast of integers preserved all values."""
    with np.errstate(all="ignore"):
        return bool(np.array_equal(cast.astype(array.dtype), array) and np.array_equal(cast < 0, array < 0))


# ---- Arrow ---------------------------------------------------------------------------------------------------------

_INTS = (int, np.integer)
_BOOLS = (bool, np.bool_)


def _accepted(kind: pa.DataType) -> tuple[tuple[type, ...], tuple[type, ...]] | None:
    """Return the Python types that a scalar Arrow type accepts, and their subclasses that it does not accept."""
    if pa.types.is_boolean(kind):
        return _BOOLS, ()
    if pa.types.is_integer(kind):
        return _INTS, (*_BOOLS, np.timedelta64)
    if pa.types.is_floating(kind):
        return (float, np.floating, *_INTS), (*_BOOLS, np.timedelta64)
    if pa.types.is_large_string(kind) or pa.types.is_string(kind):
        return (str,), ()
    if pa.types.is_large_binary(kind) or pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return (bytes, bytearray, memoryview), ()
    if pa.types.is_timestamp(kind):
        return (dt.datetime, np.datetime64), ()
    if pa.types.is_date(kind):
        return (dt.date, np.datetime64), (dt.datetime,)
    if pa.types.is_time(kind):
        return (dt.time,), ()
    if pa.types.is_duration(kind):
        return (dt.timedelta, np.timedelta64), ()
    if pa.types.is_decimal(kind):
        return (decimal.Decimal, *_INTS), _BOOLS
    return ((), ()) if pa.types.is_null(kind) else None


def _arrow(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Build a column of Arrow type ``kind``."""
    if not len(values):
        return pa.nulls(0, kind)
    if pa.types.is_large_list(kind) or pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        return _lists(values, kind)
    values = plain(values)
    if pa.types.is_struct(kind):
        return _structs(values, kind)
    every = set(map(type, values))
    types = every - {type(None)}
    whole, real = pa.types.is_integer(kind), pa.types.is_floating(kind)
    own = (whole or real) and types == {NUMBERS[kind.id].type}
    if own or (types == {int} and whole) or (types == {float} and pa.types.is_float64(kind)):
        return _numbers(values, kind, has_nulls=len(types) < len(every))
    if (every == {str} and pa.types.is_large_string(kind)) or (every == {bytes} and pa.types.is_large_binary(kind)):
        with suppress(UnicodeEncodeError):  # Arrow raises its usual error below
            return from_strings(values, kind)
    accepted = _accepted(kind)
    if accepted is not None:
        for python_type in types:
            if not issubclass(python_type, accepted[0]) or issubclass(python_type, accepted[1]):
                raise _SomeMismatch
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind):
        _check_times(values, kind)
    column = pa.array(values, kind, from_pandas=False)
    if real and kind.bit_width < 64:
        infinite = np.flatnonzero(np.isinf(column.to_numpy(zero_copy_only=False).astype(np.float64)))
        if any(not np.isinf(float(values[int(i)])) for i in infinite):
            raise _SomeMismatch("too large for the type")
    return column


def _check_times(values: Sequence[Any], kind: pa.DataType) -> None:
    """Reject times with a zone next to times without, and times finer than the unit, which Arrow would truncate."""
    zones = pa.types.is_timestamp(kind)
    step = {"s": 1_000_000, "ms": 1_000}.get(kind.unit, 1)
    for value in values:
        if zones and isinstance(value, dt.datetime) and (value.tzinfo is None) != (kind.tz is None):
            raise _SomeMismatch("a time with a zone and one without do not mix")
        part = value.microseconds if isinstance(value, dt.timedelta) else getattr(value, "microsecond", 0)
        if part % step or (kind.unit != "ns" and nanoseconds(value)):
            raise _SomeMismatch(f"its fraction of a second is finer than {kind.unit}")


def _numbers(values: Sequence[Any], kind: pa.DataType, has_nulls: bool) -> pa.Array:
    """Build a column from numbers of one type; ``has_nulls``: some values are None."""
    missing = _missing(values) if has_nulls else None
    present = (0 if value is None else value for value in values) if has_nulls else values
    return from_numbers(np.fromiter(present, NUMBERS[kind.id], len(values)), kind, missing)


def _missing(values: Sequence[Any]) -> npt.NDArray[np.bool_]:
    return np.fromiter((value is None for value in values), np.bool_, len(values))


def nanoseconds(value: Any) -> int:
    """Return the nanosecond field of a pandas time; 0 for Python's times, which have none."""
    return getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0) or 0


def _lists(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if set(map(type, values)) - {type(None)} != {np.ndarray}:
        values = plain(values)
    types = set(map(type, values)) - {type(None)}
    missing = _missing(values) if type(None) in set(map(type, values)) else None
    if not all(issubclass(t, (list, tuple, np.ndarray)) for t in types):
        raise _SomeMismatch
    width = kind.list_size if pa.types.is_fixed_size_list(kind) else None
    filler = [None] * (width or 0)
    present = values if missing is None else [filler if v is None else v for v in values]
    if types and all(t is np.ndarray for t in types) and (missing is None or not width):
        items = _concat_arrays([v for v in values if v is not None], kind.value_type)
    else:
        items = _arrow(list(chain.from_iterable(present)), kind.value_type)
    lengths = np.fromiter(map(len, present), dtype=np.int64, count=len(values))
    mask = None if missing is None else from_flags(missing)
    if width is not None:
        if np.any(lengths != width):
            raise _SomeMismatch(f"a list of {width} items is needed")
        return pa.FixedSizeListArray.from_arrays(items, type=kind, mask=mask)
    offsets = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(from_numbers(offsets.astype(np.int32), pa.int32()), items, type=kind, mask=mask)
    return pa.LargeListArray.from_arrays(from_numbers(offsets), items, type=kind, mask=mask)


def _concat_arrays(arrays: Sequence[npt.NDArray[Any]], kind: pa.DataType) -> pa.Array:
    """Concatenate the items of one-dimensional arrays."""
    if any(a.ndim != 1 for a in arrays):
        raise _SomeMismatch("an array of one dimension is needed")
    if len({a.dtype for a in arrays}) > 1:
        return pa.concat_arrays([_concat_arrays([a], kind) for a in arrays])
    flat = np.concatenate(arrays)
    if flat.dtype.kind not in "biufMm":
        return _arrow(flat.tolist(), kind)
    array = from_array(native(flat))
    if array.type == kind:
        return array
    wider = pa.types.is_integer(array.type) and pa.types.is_floating(kind)
    target = np.dtype(kind.to_pandas_dtype())
    same_class = flat.dtype.kind.replace("u", "i") == target.kind.replace("u", "i")
    if wider or (same_class and np.can_cast(flat.dtype, target, "safe")):
        return array.cast(kind, safe=True)
    raise _SomeMismatch


def _structs(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    names = {f.name for f in kind}
    for value in values:
        if value is None:
            continue
        if not isinstance(value, dict):
            raise _SomeMismatch
        if not value.keys() <= names:
            raise _SomeMismatch(f"unknown key {next(k for k in value if k not in names)!r}")
    present = [{} if v is None else v for v in values]
    columns = [_arrow([v.get(f.name) for v in present], f.type) for f in kind]
    if not columns:
        return pa.array(list(values), kind)
    mask = from_flags(_missing(values)) if type(None) in set(map(type, values)) else None
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask)
