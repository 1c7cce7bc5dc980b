"""Columns and values that are equal, and those that are not."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from cedar.core.compare import column_difference, same_value


def test_tensors_within_tuples_are_compared_by_their_values():
    torch = pytest.importorskip("torch")
    whole = torch.arange(8.0)
    a, b, other = (whole[:4], "x"), (torch.arange(4.0), "x"), (torch.ones(4), "x")
    assert same_value(a, b)
    assert not same_value(a, other)
    assert not same_value({"y": a}, {"y": other})
    assert same_value({"y": [a]}, {"y": [b]})


def test_arrays_of_objects_within_values_are_compared_item_by_item():
    def made(text):
        return {"names": np.array(["".join(text), None], dtype=object)}, [pl.DataFrame({"s": ["".join(text)]})]

    assert same_value(made("ab"), made("ab"))
    assert not same_value(made("ab"), made("ac"))


class Box:
    """An object without ``__eq__``."""

    def __init__(self, item):
        self.item = item


def test_objects_that_only_know_their_identity_are_compared_by_their_state():
    assert same_value(Box(1), Box(1))
    assert not same_value(Box(1), Box(2))
    assert same_value(Box(lambda: 1), Box(lambda: 2)), "what nothing can compare is equal"


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        (np.array([np.nan, 1.0]), np.array([-np.nan, 1.0]), True),
        (np.array([0.0]), np.array([-0.0]), False),
        (pa.array([[1.0, None], None]), pa.array([[1.0, None], None]), True),
        (pa.array([[0.0]]), pa.array([[-0.0]]), False),
        (pa.array([1]), pa.array([1.0]), False),
        (np.zeros((2, 1)), np.zeros((1, 2)), False),
    ],
)
def test_numbers_are_compared_bit_for_bit(ours, theirs, same):
    assert (column_difference(ours, theirs) is None) is same


def test_tensors_of_dtypes_that_numpy_lacks_are_compared():
    torch = pytest.importorskip("torch")
    halves = torch.tensor([1.5, torch.nan], dtype=torch.bfloat16)
    assert column_difference(halves, halves.clone()) is None
    assert "row 0" in (column_difference(halves, -halves) or "")
    bits = halves.view(torch.int16)
    assert column_difference(halves, bits) == "torch.bfloat16(2,) in the plan, torch.int16(2,) as written"
