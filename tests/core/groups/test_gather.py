"""Rows of jagged values by their numbers: those that a list of lists has there."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.groups.gather import gather, join, join_jagged
from cedar.core.jagged import JaggedTensor

rows_of_numbers = st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=5)


def jagged(rows: list[list[int]], make: Any = np.array) -> JaggedTensor:
    offsets = np.cumsum([0, *map(len, rows)])
    values = np.array([v for row in rows for v in row], dtype=np.int64)
    return JaggedTensor(values, offsets) if make is np.array else JaggedTensor(make(values), make(offsets))


def rows_in(values: Any, offsets: Any) -> list[list[int]]:
    bounds = offsets.tolist()
    listed = values if isinstance(values, list) else values.tolist()
    return [listed[a:b] for a, b in itertools.pairwise(bounds)]


@pytest.mark.parametrize("make", [np.array, torch.from_numpy])
@given(rows_of_numbers, st.data())
def test_rows_are_gathered_in_any_order_and_more_than_once(make: Any, rows: list[list[int]], data: Any) -> None:
    index = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=6))
    whole, asked = jagged(rows, make), make(np.array(index, dtype=np.int64))
    expected = [rows[i] for i in index]
    assert rows_in(*gather(whole.values, whole.offsets, asked)) == expected
    if make is np.array:
        assert rows_in(*gather(whole.values.tolist(), whole.offsets, asked)) == expected
    structs, offsets = gather({"a": whole.values, "b": whole.values + 1}, whole.offsets, asked)
    assert rows_in(structs["a"], offsets) == expected
    assert rows_in(structs["b"], offsets) == [[v + 1 for v in row] for row in expected]


def test_lists_of_lists_are_gathered_whole() -> None:
    inner = jagged([[1, 2], [], [3], [4, 5]])
    values, offsets = gather(inner, np.array([0, 2, 4]), np.array([1, 0, 1]))
    assert offsets.tolist() == [0, 2, 4, 6]
    assert rows_in(values.values, values.offsets) == [[3], [4, 5], [1, 2], [], [3], [4, 5]]


@pytest.mark.parametrize("make", [np.array, torch.from_numpy])
@given(st.lists(rows_of_numbers, min_size=1, max_size=3))
def test_parts_are_joined_one_after_the_other(make: Any, parts: list[list[list[int]]]) -> None:
    joined = join_jagged([jagged(rows, make) for rows in parts])
    assert type(joined.values) is type(joined.offsets) is type(make(np.zeros(1)))
    assert rows_in(joined.values, joined.offsets) == [row for rows in parts for row in rows]
    assert join([{"a": [1], "b": ["x"]}, {"a": [2, 3], "b": []}]) == {"a": [1, 2, 3], "b": ["x"]}
