"""What comes in is a column of ours: of polars, of any framework, of a group."""

from __future__ import annotations

import datetime as dt

import polars as pl
import pyarrow as pa
import pytest
import torch

import cedar
from cedar.core import columns
from cedar.core.boundary import as_column
from cedar.core.groups import grouped
from cedar.core.jagged import JaggedTensor
from tests.core.toy_groups import lists


def test_a_group_as_a_column_from_elsewhere_is_plain():
    assert as_column(grouped({"a": lists([1], [1])})["a"]).to_pylist() == [[1], [1]]


def test_no_rows_of_polars_join_others():
    """Of an empty slice of fixed-size lists it gives an offset that lies beyond the memory."""
    array = pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int16(), 2))
    none = as_column(pl.Series("x", array.slice(3, 0)))
    assert columns.concat([none, array]).to_pylist() == array.to_pylist()


def test_lists_of_any_framework_are_columns() -> None:
    made = JaggedTensor(torch.tensor([1, 2, 3]), torch.tensor([0, 2, 3]))
    assert as_column(made).to_pylist() == [[1, 2], [3]]


@pytest.mark.parametrize("milliseconds", [1, -1, 86_400_000 << 32])
def test_a_date_that_is_none_is_not_cut(milliseconds):
    dates = pa.array([86_400_000, milliseconds]).view(pa.date64())
    assert as_column(dates[:1]).to_pylist() == [dt.date(1970, 1, 2)]
    with pytest.raises(pa.ArrowInvalid, match="lose data"):
        as_column(dates)
    with pytest.raises(cedar.SourceError, match="lose data"):
        list(cedar.from_arrow(pa.table({"x": dates})))
