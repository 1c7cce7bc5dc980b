"""Compare the outputs of two loaders bit by bit, and describe the first difference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np

import cedar


def collect(loader: cedar.Loader, most: int | None = None) -> list[Any]:
    """Return the batches or rows that a loader delivers in one epoch, or the first ``most`` of them."""
    if most == 0:
        return []
    return list(islice(loader, most))


def plain(value: Any) -> Any:
    """Convert a value to one that compares equal only if type, shape and bytes are equal.

    Examples:
        >>> import numpy as np
        >>> plain(np.array([np.nan])) == plain(np.array([np.nan]))
        True
        >>> plain(np.array([1])) == plain(np.array([1.0]))
        False
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        body = tuple(map(plain, value.ravel().tolist())) if value.dtype == object else value.tobytes()
        return (str(value.dtype), value.shape, body)
    if isinstance(value, dict):
        return tuple((name, plain(inner)) for name, inner in value.items())
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, tuple(map(plain, value)))
    parts = _parts(value)
    if parts is not None:
        return (type(value).__name__, plain(parts))
    if getattr(type(value), "__eq__", None) is object.__eq__:  # compares by identity, which differs between runs
        return type(value).__name__
    return (type(value).__name__, repr(value))


def _parts(value: Any) -> dict[str, Any] | None:
    """Return the parts of a jagged column or an Arrow array; None for other values."""
    if hasattr(value, "to_list") and hasattr(value, "offsets"):
        return {"values": value.values, "offsets": value.offsets}
    if hasattr(value, "inverse_lookup"):
        return {"keys": value.keys, "values": value.values, "offsets": value.offsets, "inverse": value.inverse_lookup}
    if hasattr(value, "to_pylist"):
        return {"type": str(value.type), "values": value.to_pylist()}
    return None


def first_difference(expected: Sequence[Any], got: Iterable[Any], unit: str = "batch") -> str | None:
    """Describe the first difference between two runs: a batch, column and row, or the counts; None if they are equal.

    Examples:
        >>> first_difference([{"x": np.array([1, 2])}], [{"x": np.array([1, 3])}])
        "batch 0, column 'x', row 1: 3, not 2"
    """
    number = 0
    for number, value in enumerate(got, 1):
        if number > len(expected):
            return f"{unit} {number - 1}: unexpected; expected {len(expected)} in all"
        difference = _difference(expected[number - 1], value)
        if difference is not None:
            return f"{unit} {number - 1}, {difference}"
    if number < len(expected):
        return f"{unit} {number}: missing; expected {len(expected)} in all"
    return None


def _difference(expected: Any, got: Any) -> str | None:
    if plain(expected) == plain(got):
        return None
    if not isinstance(expected, dict) or not isinstance(got, dict):
        return _column_difference(expected, got)
    if list(expected) != list(got):
        return f"columns {list(got)}, not {list(expected)}"
    for name in expected:
        difference = _column_difference(expected[name], got[name])
        if difference is not None:
            return f"column {name!r}{difference}"
    return "the columns have another type"


def _column_difference(expected: Any, got: Any) -> str | None:
    if plain(expected) == plain(got):
        return None
    mine, other = rows_of(expected), rows_of(got)
    if mine is None or other is None:
        return f": {_short_repr(got)}, not {_short_repr(expected)}"
    if len(mine) != len(other):
        return f": {len(other)} rows, not {len(mine)}"
    for row, (a, b) in enumerate(zip(mine, other, strict=True)):
        if plain(a) != plain(b):
            return f", row {row}: {_short_repr(b)}, not {_short_repr(a)}"
    return f": of type {_type_name(got)}, not {_type_name(expected)}"


def rows_of(value: Any) -> list[Any] | None:
    """Return the rows of a column as a list; None if it cannot be split into rows."""
    for name in ("to_list", "to_pylist", "tolist"):
        if hasattr(value, name):
            rows = getattr(value, name)()
            return rows if isinstance(rows, list) else None
    return value if isinstance(value, list) else None


def _type_name(value: Any) -> str:
    return str(getattr(value, "dtype", type(value).__name__))


def _short_repr(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
