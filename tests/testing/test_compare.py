"""What two runs gave, compared bit by bit, and told by where they differ first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cedar
from cedar.testing.compare import first_difference, plain


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        ({"x": np.arange(3)}, {"x": np.arange(3)}, None),
        ({"x": np.array([0.0, np.nan])}, {"x": np.array([0.0, np.nan])}, None),
        ({"x": np.array([0.0])}, {"x": np.array([-0.0])}, "batch 0, column 'x', row 0: -0.0, not 0.0"),
        ({"x": np.arange(3)}, {"x": np.arange(3.0)}, "column 'x', row 0: 0.0, not 0"),
        ({"x": np.zeros(2, np.int8)}, {"x": np.zeros(2, np.int16)}, "column 'x': of type int16, not int8"),
        ({"x": np.arange(3)}, {"x": np.arange(2)}, "column 'x': 2 rows, not 3"),
        ({"x": np.arange(3)}, {"y": np.arange(3)}, "columns ['y'], not ['x']"),
        ({"x": 1, "s": "a"}, {"x": 1, "s": "b"}, "column 's': 'b', not 'a'"),
        ({"x": [np.zeros(2), None]}, {"x": [np.zeros(2), 1]}, "column 'x', row 1: 1, not None"),
    ],
)
def test_the_first_difference_is_named(one: Any, other: Any, says: str | None) -> None:
    found = first_difference([one], [other])
    assert found is None if says is None else says in str(found)


def test_lengths_that_differ_are_named() -> None:
    batch = {"x": np.arange(2)}
    assert first_difference([batch] * 2, [batch] * 3, "row") == "row 2: unexpected; expected 2 in all"
    assert first_difference([batch] * 2, [batch]) == "batch 1: missing; expected 2 in all"
    assert first_difference([], []) is None


def test_jagged_columns_and_tensors_compare_by_what_they_hold() -> None:
    def jagged(last: int) -> Any:
        return cedar.JaggedTensor(np.array([1, 2, last]), np.array([0, 1, 3]))

    assert plain(jagged(3)) == plain(jagged(3))
    assert first_difference([{"x": jagged(3)}], [{"x": jagged(4)}]) == "batch 0, column 'x', row 1: [2, 4], not [2, 3]"
