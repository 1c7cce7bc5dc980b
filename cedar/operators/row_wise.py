"""Tests on sample rows whether a function is row-wise, so that its result for a row depends only on that row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from cedar.core.block import Block
from cedar.core.columns import Column, take


def find_row_dependence(
    run: Callable[[Block], Mapping[str, Column]], block: Block, whole: Mapping[str, Column]
) -> tuple[str, str] | None:
    """Return the reason why ``run`` is not row-wise, and a fix; None if the test passes on the sample.

    Args:
        run: a function from a block to the columns of its result.
        block: the sample.
        whole: the result of ``run`` for the whole sample.
    """
    rows, slots = len(block), block.live_slots()
    if rows < 2:
        return None
    order = np.arange(rows)[::-1]
    for symptom, parts in (
        ("cut in two, the rows give another result", (np.arange(rows // 2), np.arange(rows // 2, rows))),
        ("the first row alone gives another result", (np.arange(1),)),
        ("in another order, the rows give another result", (order,)),
    ):
        for part in parts:
            columns = run(block.take(slots[part]))
            for name, column in whole.items():
                if not same_column(take(column, part), columns[name]):
                    return _reason(_same_twice(run, block, whole), f"{symptom} (column {name!r})")
    return None


def _reason(same_twice: bool, symptom: str) -> tuple[str, str]:
    if same_twice:
        return (
            f"its result depends on other rows of the block: {symptom}, so the size of a block would show",
            "give size=, the number of rows that the function sees at a time, or work on each row alone",
        )
    return (
        "called again, it gives another result for the same rows",
        "draw from map(..., random=True), and keep no state between calls",
    )


def _same_twice(run: Callable[[Block], Mapping[str, Column]], block: Block, whole: Mapping[str, Column]) -> bool:
    again = run(block)
    return all(same_column(column, again[name]) for name, column in whole.items())


def same_column(a: Column, b: Column) -> bool:
    """Return whether two columns contain bit-identical values, including NaN."""
    if isinstance(a, pa.Array) and isinstance(b, pa.Array):
        return bool(a.type == b.type) and (bool(a.equals(b)) or repr(a.to_pylist()) == repr(b.to_pylist()))
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        if a.dtype == object:
            return all(same_value(x, y) for x, y in zip(a, b, strict=True))
        return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()
    return False


def same_value(a: Any, b: Any) -> bool:
    """Return whether two Python values are equal; True for types that compare only by identity."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(map(same_value, a.values(), b.values()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same_value, a, b))
    if hasattr(a, "__array__") or hasattr(a, "__array_interface__"):  # tensors, images, frames
        return same_column(np.asarray(a), np.asarray(b))
    if getattr(type(a), "__eq__", None) is object.__eq__:  # identity does not show whether values are equal
        return True
    try:
        return bool(a == b) or repr(a) == repr(b)
    except Exception:  # noqa: BLE001 - a user's __eq__ may not return a bool
        return repr(a) == repr(b)
