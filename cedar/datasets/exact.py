"""Find numbers in files that a float column cannot store: integers that it would round, and values that overflow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from cedar.core.columns import Index, numbers
from cedar.core.distinct import list_offsets

_INTEGER = re.compile(r"\s*[+-]?[0-9]+\s*")
_DIGITS = {16: 11, 32: 24, 64: 53}  # width of a float type -> bits of the integers it stores exactly


class Inexact(ValueError):
    """A number that would be rounded or become infinite."""

    def __init__(self, name: str, value: Any, kind: pa.DataType) -> None:
        super().__init__(f"column {name!r}: {value} cannot be held exactly by {kind}")


def rounded_rows(columns: Mapping[str, pa.Array]) -> Index:
    """Return the rows in which a float is so large that it may be a rounded integer."""
    masks = [mask for column in columns.values() for mask in [_large_float_mask(column)] if mask is not None]
    return np.flatnonzero(np.logical_or.reduce(masks)) if masks else np.empty(0, dtype=np.int64)


def _large_float_mask(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Return a mask of the rows with floats beyond the exact integers; None for a type without floats."""
    kind = array.type
    if pt.is_floating(kind):
        large: npt.NDArray[np.bool_] = np.abs(numbers(array)) >= 2.0 ** _DIGITS[kind.bit_width]
        return large
    if pt.is_large_list(kind):
        inside = _large_float_mask(array.values)
        if inside is None:
            return None
        counts = np.concatenate([[0], np.cumsum(inside)])[list_offsets(array)]
        return np.diff(counts) > 0
    if pt.is_struct(kind):
        fields = [_large_float_mask(array.field(i)) for i in range(kind.num_fields)]
        masks = [mask for mask in fields if mask is not None]
        return np.logical_or.reduce(masks) if masks else None
    return None


def check_text(name: str, text: str | None, kind: pa.DataType) -> None:
    """Raise Inexact if ``text`` is an integer that type ``kind`` would round, or a number that is too large for it."""
    if text is not None and any(map(str.isdigit, text)):  # "inf" has no digits and is exact
        _check(name, text, int(text) if _INTEGER.fullmatch(text) else float(text), kind)


def check_value(name: str, value: Any, kind: pa.DataType) -> None:
    """Raise Inexact if parsed JSON contains a number that a float type within ``kind`` would round, or is too large."""
    for number, place in _numbers(value, kind):
        if isinstance(number, int) or np.isfinite(number):
            _check(name, number, number, place)


def _check(name: str, shown: Any, number: float, kind: pa.DataType) -> None:
    try:
        rounded = float(number)
    except OverflowError:
        rounded = np.inf
    with np.errstate(over="ignore"):
        stored = float(np.dtype(kind.to_pandas_dtype()).type(rounded))
    if not np.isfinite(stored) or (isinstance(number, int) and int(stored) != number):
        raise Inexact(name, shown, kind)


def _numbers(value: Any, kind: pa.DataType) -> Iterator[tuple[float, pa.DataType]]:
    if pt.is_floating(kind) and isinstance(value, int | float) and not isinstance(value, bool):
        yield value, kind
    elif pt.is_large_list(kind) and isinstance(value, list):
        for item in value:
            yield from _numbers(item, kind.value_type)
    elif pt.is_struct(kind) and isinstance(value, dict):
        for field in kind:
            yield from _numbers(value.get(field.name), field.type)


def integer_type(strings: Any) -> pa.DataType | None:
    """Return uint64 if all strings of an array are integers that fit it; None otherwise."""
    known = [text for text in strings.to_pylist() if text is not None]
    if not known or not all(map(_INTEGER.fullmatch, known)):
        return None
    return pa.uint64() if all(0 <= int(text) < 1 << 64 for text in known) else None
