"""Python rows as columns: which there are and their types are fixed by the first 64."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from cedar.core.errors import PipelineError, RowError
from cedar.datasets.items import from_items
from tests.datasets.reading import column, read_rows


def test_what_is_not_a_dict():
    class Point(NamedTuple):
        x: int
        y: str

    assert read_rows(from_items([3, 4])) == [{"item": 3}, {"item": 4}]
    assert read_rows(from_items(["a", None])) == [{"item": "a"}, {"item": None}]
    assert read_rows(from_items([(1, "a"), (2, "b")])) == [{"0": 1, "1": "a"}, {"0": 2, "1": "b"}]
    assert read_rows(from_items([[1, 2], []])) == [{"item": [1, 2]}, {"item": []}]
    assert read_rows(from_items([Point(1, "a")])) == [{"x": 1, "y": "a"}]
    assert read_rows(from_items(np.array([1, 2]))) == [{"item": 1}, {"item": 2}]
    (chunk,) = from_items(np.zeros((5, 2))).read(from_items(np.zeros((5, 2))).splits()[0])
    assert chunk.columns["item"].shape == (5, 2)


@pytest.mark.parametrize("item", [[np.zeros(2), 1], [1.5, "a"]])
def test_a_list_that_is_no_value_needs_names(item):
    with pytest.raises(RowError, match="column 'item'") as caught:
        read_rows(from_items([item] * 3))
    assert 'names=("x", "y")' in caught.value.fix
    assert list(read_rows(from_items([item] * 3, names=("x", "y")))[0]) == ["x", "y"]


def test_a_missing_key_is_null():
    assert column(from_items([{"x": 1, "y": 2}, {"x": 3}]), "y") == [2, None]
    assert column(from_items([{"x": 1}, {"x": 3, "y": 2}]), "y") == [None, 2]


def test_types_are_fixed_by_the_first_64():
    rows = [{"x": 1}] * 64 + [{"x": 2.5}]
    with pytest.raises(RowError, match="column 'x': 2.5 .*does not fit int64") as error:
        read_rows(from_items(rows))
    assert error.value.row is not None
    assert (error.value.row.row, error.value.row.url) == (64, "from_items(list of 65)")
    assert column(from_items(rows, dtypes={"x": float}), "x")[-2:] == [1.0, 2.5]
    assert column(from_items([{"x": 1}] * 63 + [{"x": 2.5}]), "x")[-2:] == [1.0, 2.5]


@pytest.mark.parametrize(
    ("rows", "message", "row"),
    [
        ([{"x": 1}] * 3 + [{"x": "a"}], "column 'x': .* do not fit into one column", 3),
        ([{"x": 1}] * 70 + [{"x": 1, "z": 2}], r"unexpected column 'z': the first 64 rows have \['x'\]", 70),
        ([{"x": 1}] * 70 + [3], "a dict is expected, like the first item, not int", 70),
        ([1] * 70 + [{"x": 1}], "a single value is expected, like the first item, not dict", 70),
    ],
)
def test_items_that_do_not_fit(rows, message, row):
    with pytest.raises(RowError, match=message) as error:
        read_rows(from_items(rows))
    assert error.value.row is not None
    assert error.value.row.row == row
    assert error.value.row.unit == "item"


def test_column_names_must_be_strings():
    with pytest.raises(PipelineError, match=r"column names must be strings, not 1 \(int\)"):
        read_rows(from_items([{1: 2}]))
    with pytest.raises(PipelineError, match="a column name is not UTF-8"):
        read_rows(from_items([{"\ud800": 1}]))
