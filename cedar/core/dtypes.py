"""Column types from ``dtype=`` arguments and from annotations."""

from __future__ import annotations

import collections.abc
import datetime as dt
import decimal
import types
import typing
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from cedar.core.boundary import NoColumn, canonical_type
from cedar.core.columns import OBJECT, ColumnType, ObjectType, TensorType
from cedar.core.errors import PipelineError, user_site

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
        return _from_union([a for a in arguments if a is not type(None)])
    if origin in _SEQUENCES and arguments:
        inner = {a for a in arguments if a is not Ellipsis}
        item = type_from_annotation(inner.pop()) if len(inner) == 1 else None
        return pa.large_list(item) if isinstance(item, pa.DataType) else None
    return None


def _from_union(options: list[Any]) -> ColumnType | None:
    kinds = {type_from_annotation(option) for option in options}
    if kinds == {pa.int64(), pa.float64()}:
        return pa.float64()
    return kinds.pop() if len(kinds) == 1 else None


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
        dtype: an Arrow type, a TensorType, a NumPy dtype or its name ("float32"), an Arrow type's name ("string"), a
            Python type (int, ``list[int]``, object), or a torch dtype.

    Raises:
        PipelineError: ``dtype`` does not name a column type.

    Examples:
        >>> print(type_from_dtype("float32"), type_from_dtype(list[str]))
        float large_list<item: large_string>
    """
    if isinstance(dtype, pa.DataType):
        try:
            return canonical_type(dtype)
        except NoColumn as reason:
            raise PipelineError(f"dtype={dtype}: {reason.problem}", site=user_site(), fix=reason.fix) from reason
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
        raise PipelineError(
            f"dtype={dtype!r} is not a type of column",
            site=user_site(),
            fix='give an Arrow type, a dtype such as "float32", int, float, str, bytes, bool, list[...] or object',
        )
    return kind


def _from_name(name: Any) -> ColumnType | None:
    try:
        numpy = np.dtype(name)
    except (TypeError, ValueError):
        pass
    else:
        return None if name is None else _from_numpy(numpy)
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
