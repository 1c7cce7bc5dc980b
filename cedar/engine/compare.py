"""Compare the rows of two runs bit for bit."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa

from cedar.core.arrow import numbers
from cedar.core.block import Block, concat_blocks
from cedar.core.columns import Column
from cedar.core.cursor import Keys
from cedar.core.groups.column import plain


def difference(done: Sequence[Block], written: Sequence[Block]) -> str | None:
    """Describe the first difference between a plan's rows and those of the pipeline as written; None if equal.

    The order of columns and the boundaries between blocks may differ.
    """
    ours, theirs = _whole(done), _whole(written)
    if ours is None or theirs is None:
        some = ours or theirs
        return None if some is None else f"{some.slots} row(s) on one side, none on the other"
    if ours.slots != theirs.slots:
        return f"{ours.slots} row(s) in the plan, {theirs.slots} as written"
    if not _same_keys(ours.keys, theirs.keys):
        return "other rows, or in another order"
    if ours.dead != theirs.dead:
        return "other rows were skipped"
    if set(ours.columns) != set(theirs.columns):
        return f"columns {sorted(set(ours.columns) ^ set(theirs.columns))} are on one side only"
    for name, column in ours.columns.items():
        why = _differs(column, theirs.columns[name])
        if why is not None:
            return f"column {name!r}: {why}"
    return None


def _whole(blocks: Sequence[Block]) -> Block | None:
    some = [block for block in blocks if block.slots]
    return concat_blocks(some) if some else None


def _same_keys(ours: Keys, theirs: Keys) -> bool:
    every = slice(0, len(ours))
    pairs = [(getattr(ours, f.name), getattr(theirs, f.name)) for f in fields(Keys)]
    return len(ours) == len(theirs) and all(
        np.array_equal(np.broadcast_to(a, len(ours))[every], np.broadcast_to(b, len(theirs))[every])
        if a is not None and b is not None
        else a is b
        for a, b in pairs
    )


def _differs(ours: Column, theirs: Column) -> str | None:
    ours, theirs = plain(ours), plain(theirs)
    if not isinstance(ours, pa.Array) and not isinstance(ours, np.ndarray):
        return _formatted_differ(ours, theirs)
    if isinstance(ours, pa.Array) != isinstance(theirs, pa.Array):
        return f"{type(ours).__name__} in the plan, {type(theirs).__name__} as written"
    if isinstance(ours, pa.Array):
        if ours.type != theirs.type:
            return f"{ours.type} in the plan, {theirs.type} as written"
        return None if same_array(ours, theirs) else _first_diff(ours.to_pylist(), theirs.to_pylist())
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return f"{ours.dtype}{ours.shape} in the plan, {theirs.dtype}{theirs.shape} as written"
    if ours.dtype == object:
        return None if all(_same_object(a, b) for a, b in zip(ours, theirs, strict=True)) else _first_diff(ours, theirs)
    same = _plain_nan(ours).tobytes() == _plain_nan(theirs).tobytes()
    return None if same else _first_diff(ours, theirs)


def _formatted_differ(ours: Any, theirs: Any) -> str | None:
    """Compare columns in the loader's output format, such as tensors; equal rows may be laid out differently."""
    if type(ours) is not type(theirs):
        return f"{type(ours).__name__} in the plan, {type(theirs).__name__} as written"
    if hasattr(ours, "expand_weights"):
        pairs = [(ours.expand()[name], theirs.expand().get(name)) for name in ours.expand()]
        return next((unlike for pair in pairs if (unlike := _formatted_differ(*pair)) is not None), None)
    if hasattr(ours, "offsets"):
        pairs = [(ours.values, theirs.values), (ours.offsets, theirs.offsets)]
        return next((unlike for pair in pairs if (unlike := _parts_differ(*pair)) is not None), None)
    return _parts_differ(ours, theirs)


def _parts_differ(ours: Any, theirs: Any) -> str | None:
    return _differs(_on_host(ours), _on_host(theirs)) if hasattr(ours, "dtype") else _objects_differ(ours, theirs)


def _on_host(values: Any) -> Any:
    """Return a tensor as a NumPy array; dtypes that NumPy lacks (bfloat16) are viewed as integers."""
    if isinstance(values, pa.Array | np.ndarray) or not hasattr(values, "detach"):
        return values
    values = values.detach().cpu()
    try:
        return values.numpy()
    except TypeError:
        import torch

        return values.view(torch.int16).numpy()


def _objects_differ(ours: Any, theirs: Any) -> str | None:
    return None if _same_object(ours, theirs) else f"{ours!r:.60} in the plan, {theirs!r:.60} as written"


def _plain_nan(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Replace every NaN by one bit pattern, because the NaN bits of a sum or product depend on the block size."""
    if values.dtype.kind not in "fc" or not np.isnan(values).any():
        return np.ascontiguousarray(values)
    return np.where(np.isnan(values), values.dtype.type(np.nan), values)


def same_array(ours: pa.Array, theirs: pa.Array) -> bool:
    """Compare types, nulls and values; floats are compared by their bits, except that any NaN equals any NaN."""
    if len(ours) != len(theirs) or not ours.is_null().equals(theirs.is_null()):
        return False
    kind = ours.type
    if pa.types.is_floating(kind):
        bits = np.dtype(f"u{kind.bit_width // 8}")
        mine, other = (_plain_nan(numbers(a.drop_null())).view(bits) for a in (ours, theirs))
        return np.array_equal(mine, other)
    if pa.types.is_struct(kind):
        return all(same_array(a, b) for a, b in zip(ours.flatten(), theirs.flatten(), strict=True))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        same = ours.value_lengths().equals(theirs.value_lengths())
        return bool(same) and same_array(ours.flatten(), theirs.flatten())
    if pa.types.is_fixed_size_list(kind):
        return same_array(ours.flatten(), theirs.flatten())
    return bool(ours.equals(theirs))


def _same_object(ours: Any, theirs: Any) -> bool:
    if ours is theirs:
        return True
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, tuple | list):
        return len(ours) == len(theirs) and all(map(_same_object, ours, theirs))
    if isinstance(ours, dict):
        return list(ours) == list(theirs) and all(map(_same_object, ours.values(), theirs.values()))
    try:
        if hasattr(ours, "__array__"):  # includes tensors, since the pickle of a view contains its whole storage
            ours, theirs = np.asarray(ours), np.asarray(theirs)
            return (ours.dtype, ours.shape, ours.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes())
        return bool(ours == theirs) or pickle.dumps(ours) == pickle.dumps(theirs)
    except Exception:  # noqa: BLE001 - objects without a usable == are equal if their pickles are
        try:
            return pickle.dumps(ours) == pickle.dumps(theirs)
        except Exception:  # noqa: BLE001 - objects that cannot be compared or pickled, such as file handles, are equal
            return True


def _first_diff(ours: Any, theirs: Any) -> str:
    for row, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if not _same_object(a, b):
            return f"row {row}: {a!r:.60} in the plan, {b!r:.60} as written"
    return "other bits"


def compared(done: Sequence[Block], written: Sequence[Block], batched: bool) -> str | None:
    """Describe the first difference between two runs; None if equal. Block boundaries matter only if ``batched``."""
    if done and written and list(done[0].columns) != list(written[0].columns):
        return f"columns {list(done[0].columns)}, {list(written[0].columns)} as written"
    if not batched:
        return difference(done, written)
    if len(done) != len(written):
        return f"{len(done)} batch(es) in the plan, {len(written)} as written"
    for number, (ours, theirs) in enumerate(zip(done, written, strict=True)):
        mismatch = difference([ours], [theirs])
        if mismatch is not None:
            return f"batch {number}: {mismatch}"
    return None
