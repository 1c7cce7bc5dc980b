"""Distinct rows: those that a dict finds, and no more."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given

from cedar.core.distinct import distinct, repeated
from tests.core.toy_groups import model, tables


@given(tables())
def test_distinct_rows_are_those_that_a_dict_finds(table):
    inverse, first = distinct(list(table.values()))
    assert (inverse.tolist(), first.tolist()) == model(table)


@given(tables())
def test_rows_that_repeat_are_told_from_those_that_do_not(table):
    found = repeated(list(table.values()))
    inverse, first = model(table)
    if found is None:
        assert len(first) == len(inverse)
    else:
        assert (found[0].tolist(), found[1].tolist()) == (inverse, first)


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64(), 2), pa.list_(pa.float32(), 0), pa.large_list(pa.decimal128(9, 2))]
)
def test_other_kinds_of_lists_are_told_apart_too(kind):
    size = kind.list_size if pa.types.is_fixed_size_list(kind) else 1
    column = pa.array([[1] * size, None, [2] * size, [1] * size], kind)
    inverse, _ = distinct([column.slice(0)])
    assert inverse.tolist() == ([0, 1, 2, 0] if size else [0, 1, 0, 0])
    assert distinct([column.slice(2)])[0].tolist() == ([0, 1] if size else [0, 0])
