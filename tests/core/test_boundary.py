"""What comes in is a column of ours: of polars, of any framework, of a group."""

from __future__ import annotations

import datetime as dt

import numpy as np
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


@pytest.mark.parametrize("kind", [">i4", ">f8", ">M8[s]", ">U3"])
def test_arrays_in_the_byte_order_of_other_machines_are_columns(kind: str) -> None:
    swapped = np.array(["2024", "2025", "2026"]).astype(kind if kind[1] in "MU" else ">i8").astype(kind)
    native = swapped.astype(np.dtype(kind).newbyteorder("="))
    assert as_column(swapped).equals(as_column(native))
    rows = list(cedar.from_numpy({"x": native}))
    assert list(cedar.from_numpy({"x": swapped})) == rows
    if kind[1] in "if":
        batch = next(iter(cedar.from_numpy({"x": swapped.reshape(3, 1)}).batch(3).loader(format="torch")))
        assert batch["x"].tolist() == native.reshape(3, 1).tolist()


@pytest.mark.parametrize("milliseconds", [1, -1, 86_400_000 << 32])
def test_a_date_that_is_none_is_not_cut(milliseconds):
    dates = pa.array([86_400_000, milliseconds]).view(pa.date64())
    assert as_column(dates[:1]).to_pylist() == [dt.date(1970, 1, 2)]
    with pytest.raises(pa.ArrowInvalid, match="lose data"):
        as_column(dates)
    with pytest.raises(cedar.SourceError, match="lose data"):
        list(cedar.from_arrow(pa.table({"x": dates})))
