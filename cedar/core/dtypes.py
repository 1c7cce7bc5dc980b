"""Column types from ``dtype=`` arguments, from annotations, and from samples of Python values."""

from __future__ import annotations

import collections.abc
import datetime as dt
import decimal
import types
import typing
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from cedar.core.boundary import NoColumn, canonical_type, type_of_series
from cedar.core.columns import OBJECT, ColumnType, ObjectType, TensorType
from cedar.core.errors import invalid_call
from cedar.core.values import ValueMismatch, describe, is_masked, nanoseconds, plain

_PLAIN: dict[Any, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.large_string(),
    bytes: pa.large_binary(),
    dt.datetime: pa.timestamp("us"),
    dt.date: pa.date32(),
    dt.time: pa.time64("us"),
    dt.timedelta: pa.duration("us"),
}
_SEQUENCES = (list, tuple, collections.abc.Sequence)


def type_from_annotation(annotation: Any) -> ColumnType | None:
    """Return the column type that an annotation declares; None if it leaves the type open, as ``np.ndarray`` does.

    Examples:
        >>> print(type_from_annotation(list[int] | None))
        large_list<item: int64>
    """
    if isinstance(annotation, type) and annotation in _PLAIN:
        return _PLAIN[annotation]
    if isinstance(annotation, type) and issubclass(annotation, np.generic):
        return _from_numpy(np.dtype(annotation)) if annotation is not np.generic else None
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return type_from_annotation(arguments[0])
    if origin in (typing.Union, types.UnionType):
        kinds = {type_from_annotation(option) for option in arguments if option is not type(None)}
        if kinds == {pa.int64(), pa.float64()}:
            return pa.float64()
        return kinds.pop() if len(kinds) == 1 else None
    if origin in _SEQUENCES and arguments:
        inner = {a for a in arguments if a is not Ellipsis}
        item = type_from_annotation(inner.pop()) if len(inner) == 1 else None
        return pa.large_list(item) if isinstance(item, pa.DataType) else None
    return None


def return_annotation(fn: Callable[..., Any]) -> Any:
    """Return the return annotation of a function or of a class's ``__call__``; None if there is none.

    Annotations that are strings are resolved; one that cannot be resolved is ignored.
    """
    target: Any = fn
    while hasattr(target, "func") and hasattr(target, "keywords"):  # functools.partial
        target = target.func
    if isinstance(target, type) or not hasattr(target, "__annotations__"):
        target = getattr(target, "__call__", None)  # noqa: B004 - the method has the annotation
    try:
        return typing.get_type_hints(target, include_extras=True).get("return")
    except Exception:  # noqa: BLE001 - some names exist only for type checkers
        return None


def item_annotation(annotation: Any) -> Any:
    """Return ``X`` of ``list[X]``, ``Iterator[X]`` or ``Generator[X, ...]``; None otherwise."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if not arguments or not isinstance(origin, type) or not issubclass(origin, collections.abc.Iterable):
        return None
    if issubclass(origin, collections.abc.Mapping):
        return None
    if issubclass(origin, tuple) and (len(arguments) != 2 or arguments[1] is not Ellipsis):
        return None
    return arguments[0]


def type_from_dtype(dtype: Any) -> ColumnType:
    """Return the column type that a ``dtype=`` argument asks for.

    Args:
        dtype: an Arrow or polars type, a TensorType, a NumPy dtype or its name ("float32"), an Arrow type's name
            ("string"), a Python type (int, ``list[int]``, object), or a torch dtype.

    Raises:
        PipelineError: ``dtype`` does not name a column type.

    Examples:
        >>> print(type_from_dtype("float32"), type_from_dtype(list[str]))
        float large_list<item: large_string>
    """
    from_polars = type(dtype).__module__.startswith("polars.datatypes")  # its types are instances and classes
    if from_polars and str(dtype) == "Object":
        return OBJECT
    from_polars = from_polars and not (isinstance(dtype, type) and dtype.is_nested())  # type: ignore[attr-defined]
    if from_polars or isinstance(dtype, pa.DataType):
        try:
            return type_of_series(dtype) if from_polars else canonical_type(dtype)
        except NoColumn as reason:
            raise invalid_call(f"dtype={dtype}: {reason.problem}", fix=reason.fix) from reason
    if isinstance(dtype, (TensorType, ObjectType)):
        return dtype
    if dtype is object:
        return OBJECT
    if dtype is decimal.Decimal:
        return pa.decimal128(38, 9)
    declared = type_from_annotation(dtype)
    if declared is not None:
        return declared
    name = str(dtype).removeprefix("torch.") if type(dtype).__module__ == "torch" else dtype
    kind = _from_name(name)
    if kind is None:
        raise invalid_call(
            f"dtype={dtype!r} is not a type of column",
            fix='give an Arrow or polars type, a dtype such as "float32", int, float, str, bytes, bool, datetime.date, '
            "list[...] or object",
        )
    return kind


def _from_name(name: Any) -> ColumnType | None:
    try:
        numpy = np.dtype(name)
    except (TypeError, ValueError):
        pass
    else:
        if name is None or (numpy.kind == "O" and isinstance(name, type) and name is not np.object_):
            return None  # NumPy takes every class for object, such as those of polars' types
        return _from_numpy(numpy)
    try:
        return canonical_type(pa.type_for_alias(name))
    except (TypeError, ValueError, AttributeError):
        return None


def _from_numpy(dtype: np.dtype[Any]) -> ColumnType | None:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return TensorType(tuple(shape), base.newbyteorder("=").name)
    if dtype.kind == "O":
        return OBJECT
    if dtype.kind in "US":
        return pa.large_string() if dtype.kind == "U" else pa.large_binary()
    try:
        return pa.from_numpy_dtype(dtype)
    except pa.ArrowException:
        return TensorType((), dtype.newbyteorder("=").name) if dtype.kind == "c" else None


# The first match decides, so subclasses come before their bases (bool before int, np.float64 before float).
_FAMILIES: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("bool", (bool, np.bool_)),
    ("duration", (dt.timedelta, np.timedelta64)),
    ("int", (int, np.integer)),
    ("object", (np.longdouble,)),
    ("float", (float, np.floating)),
    ("str", (str,)),
    ("bytes", (bytes, bytearray, memoryview)),
    ("datetime", (dt.datetime, np.datetime64)),
    ("date", (dt.date,)),
    ("time", (dt.time,)),
    ("decimal", (decimal.Decimal,)),
    ("dict", (dict,)),
    ("list", (list, tuple)),
    ("array", (np.ndarray,)),
)


def _plain_value(index: int, value: Any) -> Any:
    try:
        return plain([value])[0]
    except (TypeError, RuntimeError) as error:  # tensors that NumPy does not have, such as of bfloat16
        raise ValueMismatch(index, f"{describe(value)} cannot be converted: {error}") from error


def infer_type(values: Sequence[Any]) -> ColumnType:
    """Return the column type for up to 64 Python values.

    Numbers, strings, times, lists and dicts become Arrow types. ndarrays and tensors of one shape become a fixed-shape
    tensor; one-dimensional ones of different lengths become a list. Other values become objects. None is a null and
    does not affect the type. Integers and floats together become float64.

    Raises:
        ValueMismatch: the values have kinds that cannot share a column.

    Examples:
        >>> print(infer_type([1, None, 2.5]), infer_type([[1], []]))
        double large_list<item: int64>
    """
    values = [_plain_value(index, value) for index, value in enumerate(values)]
    present = [v for v in values if v is not None]
    families = {_family(t) for t in set(map(type, present))}
    if not families:
        return pa.null()
    if "object" in families:
        return OBJECT
    if families == {"array"}:
        return _arrays(values, present)
    if families == {"list", "array"}:
        present = [v.tolist() if isinstance(v, np.ndarray) else v for v in present]
        families = {"list"}
    if families == {"int", "float"}:
        families = {"float"}
    if len(families) > 1:
        raise _mixed(values)
    family = families.pop()
    if family == "list":
        return _lists(values, present)
    return _structs(present) if family == "dict" else _scalars(present, family)


def _family(kind: type) -> str:
    if is_masked(kind):
        return "object"
    return next((name for name, bases in _FAMILIES if issubclass(kind, bases)), "object")


def _mixed(values: Sequence[Any]) -> ValueMismatch:
    present = [(i, v) for i, v in enumerate(values) if v is not None]
    first = present[0][1]
    index, other = next((i, v) for i, v in present if _family(type(v)) != _family(type(first)))
    return ValueMismatch(index, f"{describe(first)} and {describe(other)} do not fit into one column")


def _scalars(present: list[Any], family: str) -> ColumnType:
    if family == "int":
        common = np.result_type(*{v.dtype if isinstance(v, np.integer) else np.dtype(np.int64) for v in present})
        low, high = int(min(present)), int(max(present))
        if common.kind in "iu" and np.iinfo(common).min <= low and high <= np.iinfo(common).max:
            return pa.from_numpy_dtype(common)
        return pa.uint64() if low >= 0 and high < 1 << 64 else OBJECT
    if family == "float":
        dtypes = {v.dtype if isinstance(v, np.generic) else np.float64 for v in present}
        return pa.from_numpy_dtype(np.result_type(*dtypes))
    if family == "decimal":  # later decimals may have more digits than the sample
        scale = max(max(0, -int(v.as_tuple().exponent)) if v.is_finite() else 0 for v in present)
        digits = scale + max(v.adjusted() + 1 if v.is_finite() and v else 0 for v in present)
        return pa.decimal128(38, scale) if max(digits, scale) <= 38 else pa.decimal256(76, min(scale, 76))
    if family in ("bool", "str", "bytes"):
        return {"bool": pa.bool_(), "str": pa.large_string(), "bytes": pa.large_binary()}[family]
    if family == "datetime":
        zones = {v.tzinfo is None for v in present if isinstance(v, dt.datetime)}
        if len(zones) > 1:
            first = present[0].tzinfo
            index = next(i for i, v in enumerate(present) if (v.tzinfo is None) != (first is None))
            raise ValueMismatch(
                index, f"{describe(present[0])} and {describe(present[index])} do not fit into one column"
            )
    try:
        kind = pa.infer_type(present)
    except pa.ArrowException as error:
        raise ValueMismatch(0, str(error)) from error
    if any(map(nanoseconds, present)):
        return pa.duration("ns") if family == "duration" else pa.timestamp("ns", kind.tz)
    return kind


def _arrays(values: Sequence[Any], present: list[Any]) -> ColumnType:
    dtypes = {v.dtype.newbyteorder("=") for v in present}
    if any(d.kind in "US" for d in dtypes):
        return infer_type([None if v is None else v.tolist() for v in values])
    if any(d.kind not in "biufcMm" for d in dtypes):
        return OBJECT
    shapes = {v.shape for v in present}
    whole = len(present) == len(values)
    alike = len(dtypes) == 1 or not any(d.kind in "bMm" for d in dtypes)
    if len(shapes) == 1 and alike and whole:
        return TensorType(next(iter(shapes)), str(np.result_type(*dtypes)))
    if all(len(shape) == 1 for shape in shapes) and alike:
        return _list_of(np.result_type(*dtypes))
    if not alike:
        index = next(i for i, v in enumerate(values) if v is not None and v.dtype != present[0].dtype)
        raise ValueMismatch(index, f"{describe(present[0])} and {describe(values[index])} do not fit into one column")
    if not whole and len(shapes) == 1:
        index = next(i for i, v in enumerate(values) if v is None)
        raise ValueMismatch(index, f"None and {describe(present[0])} do not fit into one column: arrays have no nulls")
    return OBJECT  # for example, images of different sizes


def _list_of(dtype: np.dtype[Any]) -> ColumnType:
    try:
        return pa.large_list(pa.from_numpy_dtype(dtype))
    except pa.ArrowException:  # Arrow has no complex numbers, long doubles or times in some units
        return OBJECT


def _lists(values: Sequence[Any], present: list[Any]) -> ColumnType:
    try:
        item = infer_type(list(chain.from_iterable(present)))
    except ValueMismatch as misfit:
        ends = np.cumsum([0 if v is None else len(v) for v in values])
        index = int(np.searchsorted(ends, misfit.index, side="right"))
        raise ValueMismatch(index, f"in one list column: {misfit.message}") from misfit
    if isinstance(item, TensorType):
        item = _list_of(np.dtype(item.dtype)) if len(item.shape) == 1 else OBJECT
    return OBJECT if isinstance(item, ObjectType) else pa.large_list(item)


def _structs(present: list[Any]) -> ColumnType:
    names = dict.fromkeys(chain.from_iterable(present))
    if not all(isinstance(name, str) for name in names):
        return OBJECT
    fields: dict[str, ColumnType] = {}
    for name in names:
        kind = infer_type([v.get(name) for v in present])
        if isinstance(kind, TensorType) and len(kind.shape) == 1:
            kind = _list_of(np.dtype(kind.dtype))
        if not isinstance(kind, pa.DataType):
            return OBJECT
        fields[name] = kind
    return pa.struct(list(fields.items()))
