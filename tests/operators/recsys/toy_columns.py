"""Columns for transforms, and what they do row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

import cedar
from cedar.core.boundary import as_column
from cedar.operators.transform import BadValues
from tests.toy_sessions import sessions

SMALL = st.integers(-2, 2)
IDS = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)
FLOATS = st.floats(-1e6, 1e6, width=32) | st.sampled_from([0.0, 0.5, 1.0, float("nan")])


@st.composite
def list_columns(draw: Any, items: Any, kind: pa.DataType, count: int = 1, most: int = 4, nulls: bool = True) -> Any:
    """``count`` columns of lists of as many rows, sliced as columns of blocks are."""
    rows = draw(st.integers(0, 6))
    lists = st.lists(items, max_size=most)
    found = []
    for _ in range(count):
        values = draw(st.lists(lists | st.none() if nulls else lists, min_size=rows + 1, max_size=rows + 1))
        found.append(as_column(pa.array(values, pa.large_list(kind))).slice(1))
    return found


def rows_of(columns: list[Any]) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def same(one: Any, other: Any) -> bool:
    """Equal, NaN to NaN, and floats up to their last digits."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) or isinstance(other, float):
        if one is None or other is None:
            return one is other
        return bool(np.isclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True))
    return bool(one == other)


def check(transform: Any, columns: list[Any], expected: Any) -> None:
    """A transform of columns is what ``expected`` makes of each row; None, where one of them is null."""
    found = transform.columns(*columns)
    assert found.type == transform.result(*(column.type for column in columns))
    wanted = [None if None in row else expected(*row) for row in rows_of(columns)]
    assert same(found.to_pylist(), wanted), (found.to_pylist(), wanted)


def refused(transform: Any, columns: list[Any]) -> dict[int, str]:
    """The rows that a transform refuses."""
    try:
        transform.columns(*columns)
    except BadValues as bad:
        return bad.rows
    return {}


def log(rows: int = 64, samples: int = 8, repeats: float = 0.9, **more: Any) -> cedar.Pipeline:
    """A log of clicks, whose rows repeat the lists of their session."""
    return cedar.from_arrow(sessions(rows, samples, repeats, **more))
