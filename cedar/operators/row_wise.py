"""Row-wise: a test on sample rows of whether a function's result for a row depends on that row alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from cedar.core.block import Block
from cedar.core.columns import Column, take


def reason_against(
    run: Callable[[Block], Mapping[str, Column]], block: Block, whole: Mapping[str, Column]
) -> tuple[str, str] | None:
    """Why ``run`` is not row-wise and what to do; None if the sample shows nothing against it.

    Args:
        run: a block's columns to its result's.
        block: the sample.
        whole: the result for all of it.
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
    """Whether two columns hold the same values, bit for bit, NaN included."""
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
    """Whether two Python values are the same, as far as their types allow to tell."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(map(same_value, a.values(), b.values()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same_value, a, b))
    if hasattr(a, "__array__") or hasattr(a, "__array_interface__"):  # tensors, images, frames
        return same_column(np.asarray(a), np.asarray(b))
    if getattr(type(a), "__eq__", None) is object.__eq__:  # compares by identity, which says nothing here
        return True
    try:
        return bool(a == b) or repr(a) == repr(b)
    except Exception:  # noqa: BLE001 - a user's __eq__ that gives no bool, as arrays do
        return repr(a) == repr(b)
