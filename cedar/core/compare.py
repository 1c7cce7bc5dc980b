"""Compare columns and Python values by their content: numbers bit for bit, except that any NaN equals any NaN."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa

from cedar.core.columns import numbers
from cedar.core.groups import plain
from cedar.core.jagged import is_array, to_compare


def column_difference(ours: Any, theirs: Any) -> str | None:
    """Describe the first difference between two columns, or their parts; equal tensors may be laid out differently."""
    ours, theirs = plain(ours), plain(theirs)
    if isinstance(ours, pa.Array) and isinstance(theirs, pa.Array):
        if ours.type != theirs.type:
            return f"{ours.type} in the plan, {theirs.type} as written"
        return None if _same_array(ours, theirs) else _first_diff(ours.to_pylist(), theirs.to_pylist())
    if type(ours) is not type(theirs) and not (isinstance(ours, np.ndarray) and isinstance(theirs, np.ndarray)):
        return f"{type(ours).__name__} in the plan, {type(theirs).__name__} as written"
    if hasattr(ours, "inverse_lookup"):
        pairs = [(column, theirs.expand().get(name)) for name, column in ours.expand().items()]
        return next((unlike for pair in pairs if (unlike := column_difference(*pair)) is not None), None)
    if hasattr(ours, "offsets"):
        return column_difference(ours.values, theirs.values) or column_difference(ours.offsets, theirs.offsets)
    if not hasattr(ours, "dtype"):
        return None if same_value(ours, theirs) else f"{ours!r:.60} in the plan, {theirs!r:.60} as written"
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return f"{ours.dtype}{tuple(ours.shape)} in the plan, {theirs.dtype}{tuple(theirs.shape)} as written"
    if is_array(ours):
        ours, theirs = to_compare(ours), to_compare(theirs)
    if ours.dtype == object:
        return None if all(map(same_value, ours, theirs)) else _first_diff(ours, theirs)
    same = _plain_nan(ours).tobytes() == _plain_nan(theirs).tobytes()
    return None if same else _first_diff(ours, theirs)


def _plain_nan(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Replace every NaN by one bit pattern, because the NaN bits of a sum or product depend on the block size."""
    if values.dtype.kind not in "fc" or not np.isnan(values).any():
        return np.ascontiguousarray(values)
    return np.where(np.isnan(values), values.dtype.type(np.nan), values)


def _same_array(ours: pa.Array, theirs: pa.Array) -> bool:
    """Compare types, nulls and values; floats are compared by their bits, except that any NaN equals any NaN."""
    if len(ours) != len(theirs) or not ours.is_null().equals(theirs.is_null()):
        return False
    kind = ours.type
    if pa.types.is_floating(kind):
        bits = np.dtype(f"u{kind.bit_width // 8}")
        mine, other = (_plain_nan(numbers(a.drop_null())).view(bits) for a in (ours, theirs))
        return np.array_equal(mine, other)
    if pa.types.is_struct(kind):
        return all(_same_array(a, b) for a, b in zip(ours.flatten(), theirs.flatten(), strict=True))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        same = ours.value_lengths().equals(theirs.value_lengths())
        return bool(same) and _same_array(ours.flatten(), theirs.flatten())
    if pa.types.is_fixed_size_list(kind):
        return _same_array(ours.flatten(), theirs.flatten())
    return bool(ours.equals(theirs))


def same_value(ours: Any, theirs: Any) -> bool:
    """Return whether two Python values are equal; also True for values that cannot be compared."""
    if ours is theirs:
        return True
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, tuple | list):
        return len(ours) == len(theirs) and all(map(same_value, ours, theirs))
    if isinstance(ours, dict):
        return list(ours) == list(theirs) and all(map(same_value, ours.values(), theirs.values()))
    try:
        if hasattr(ours, "__array__"):  # includes tensors, since the pickle of a view contains its whole storage
            if not hasattr(ours, "dtype"):
                ours, theirs = np.asarray(ours), np.asarray(theirs)
            return column_difference(ours, theirs) is None
        return bool(ours == theirs) or pickle.dumps(ours) == pickle.dumps(theirs)
    except Exception:  # noqa: BLE001 - objects without a usable == are equal if their pickles are
        try:
            return pickle.dumps(ours) == pickle.dumps(theirs)
        except Exception:  # noqa: BLE001 - objects that cannot be compared or pickled, such as file handles, are equal
            return True


def _first_diff(ours: Any, theirs: Any) -> str:
    for row, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if not same_value(a, b):
            return f"row {row}: {a!r:.60} in the plan, {b!r:.60} as written"
    return "other bits"
