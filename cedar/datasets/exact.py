"""Whole numbers in text that a column of floats does not hold exactly: found, so that none is rounded in silence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from cedar.core.arrow import numbers
from cedar.core.columns import Index
from cedar.core.groups.encode import list_offsets

_WHOLE = re.compile(r"\s*[+-]?[0-9]+\s*")
_DIGITS = {16: 11, 32: 24, 64: 53}  # bits of whole numbers that a float of so many bits holds, all of them


class Inexact(ValueError):
    """A whole number that would be rounded."""

    def __init__(self, name: str, value: int, kind: pa.DataType) -> None:
        super().__init__(f"column {name!r}: {value} cannot be held exactly by {kind}")


def rounded_rows(columns: Mapping[str, pa.Array]) -> Index:
    """The rows in which a float is so large that it may be a whole number which was rounded.

    Example:
        >>> rounded_rows({"x": pa.array([1.5, 2.0**60, None])}).tolist()
        [1]
    """
    masks = [mask for column in columns.values() for mask in [_large(column)] if mask is not None]
    return np.flatnonzero(np.logical_or.reduce(masks)) if masks else np.empty(0, dtype=np.int64)


def _large(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Which rows hold large floats; None for a type without floats."""
    kind = array.type
    if pt.is_floating(kind):
        large: npt.NDArray[np.bool_] = np.abs(numbers(array)) >= 2.0 ** _DIGITS[kind.bit_width]
        return large
    if pt.is_large_list(kind):
        inside = _large(array.values)
        if inside is None:
            return None
        counts = np.concatenate([[0], np.cumsum(inside)])[list_offsets(array)]
        return np.diff(counts) > 0
    if pt.is_struct(kind):
        fields = [_large(array.field(i)) for i in range(kind.num_fields)]
        masks = [mask for mask in fields if mask is not None]
        return np.logical_or.reduce(masks) if masks else None
    return None


def check_text(name: str, text: str | None, kind: pa.DataType) -> None:
    """Raises Inexact where a text is a whole number that ``kind`` does not hold."""
    if text is not None and _WHOLE.fullmatch(text):
        check_value(name, int(text), kind)


def check_value(name: str, value: Any, kind: pa.DataType) -> None:
    """Raises Inexact where ``value``, of parsed JSON, has a whole number that its place in ``kind`` does not hold."""
    for number, place in _numbers(value, kind):
        with np.errstate(over="ignore"):
            stored = float(np.dtype(place.to_pandas_dtype()).type(_float(number)))
        if not np.isfinite(stored) or int(stored) != number:
            raise Inexact(name, number, place)


def _float(number: int) -> float:
    try:
        return float(number)
    except OverflowError:
        return np.inf


def _numbers(value: Any, kind: pa.DataType) -> Iterator[tuple[int, pa.DataType]]:
    if pt.is_floating(kind) and isinstance(value, int) and not isinstance(value, bool):
        yield value, kind
    elif pt.is_large_list(kind) and isinstance(value, list):
        for item in value:
            yield from _numbers(item, kind.value_type)
    elif pt.is_struct(kind) and isinstance(value, dict):
        for field in kind:
            yield from _numbers(value.get(field.name), field.type)


def whole_type(texts: Any) -> pa.DataType | None:
    """uint64 where all texts of an array are whole numbers that it holds; None otherwise."""
    known = [text for text in texts.to_pylist() if text is not None]
    if not known or not all(map(_WHOLE.fullmatch, known)):
        return None
    return pa.uint64() if all(0 <= int(text) < 1 << 64 for text in known) else None
