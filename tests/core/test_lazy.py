"""``cedar.col`` is polars' ``col``, however it is asked for a column."""

from __future__ import annotations

import copy
from typing import Any

import polars as pl
import pytest

from cedar.core.lazy import col

FRAME = pl.DataFrame({"x": [1, 2], "int_a": [3, 4], "int_b": [5, 6]})


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda: col("x") + 1, lambda: pl.col("x") + 1),
        (lambda: col.x * 2, lambda: pl.col.x * 2),
        (lambda: col("x", "int_a"), lambda: pl.col("x", "int_a")),
        (lambda: col("^int_.*$").sum(), lambda: pl.col("^int_.*$").sum()),
    ],
)
def test_expressions_are_those_of_polars(ours: Any, theirs: Any) -> None:
    assert FRAME.select(ours()).equals(FRAME.select(theirs()))
    assert ours().meta.eq(theirs())


def test_it_is_no_column_where_python_asks_for_protocols() -> None:
    assert repr(col) == "cedar.col"
    with pytest.raises(AttributeError, match="__array__"):
        getattr(col, "__array__")  # noqa: B009 - as NumPy does
    assert copy.copy(col)("x").meta.eq(pl.col("x"))
