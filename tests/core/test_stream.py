"""Streams: index plans are those of lists, and a flow continues where a position says."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.stream import Rows, concat_rows, is_count
from tests.toy_stream import ListStream, block_of, drain

Pairs = list[tuple[int, int]]


def pairs(block: Any) -> Pairs:
    """Key and value of each row."""
    return list(zip(block.keys.row.tolist(), block.columns["x"].tolist(), strict=True))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.data())
def test_plans_are_cut_taken_and_joined_as_lists_and_gathered_once(sizes: list[int], data: st.DataObject) -> None:
    runs, model = [], []
    for number, size in enumerate(sizes):
        block = block_of({"x": np.arange(size) + 10 * number}, first=100 * number)
        runs.append(Rows.of(block))
        model += pairs(block)
    plan = concat_rows(runs)
    for _ in range(data.draw(st.integers(0, 3))):
        if data.draw(st.booleans()):
            start = data.draw(st.integers(0, len(model)))
            stop = data.draw(st.integers(start, len(model)))
            plan, model = plan.slice(start, stop), model[start:stop]
        elif model:
            index = data.draw(st.lists(st.integers(0, len(model) - 1), max_size=6))
            plan, model = plan.take(np.array(index, dtype=np.int64)), [model[i] for i in index]
    assert len(plan) == len(model)
    for each in (plan, plan.compact()):
        assert pairs(each.gather()) == model
        assert each.keys().row.tolist() == [key for key, _ in model]


@pytest.mark.parametrize("sizes", [None, [3, 1, 4, 2]])
@given(st.integers(0, 99))
def test_a_flow_without_its_first_units_is_the_rest_and_keeps_its_windows(sizes: list[int] | None, seed: int) -> None:
    stream = ListStream({"x": list(range(10))}, sizes=sizes, marks=(1, 2), seed=seed)
    rng = random.Random(seed)
    whole, positions, _ = drain(stream.open([stream.start(), 0]), rng)
    assert len(whole) == stream.units
    for unit, position in enumerate(positions):
        rest, _, marks = drain(stream.open([stream.start(), unit]), rng)
        assert rest == drain(stream.open(position), rng)[0] == whole[unit:]
        assert marks == [mark - unit for mark in (1, 2) if mark >= unit]
    assert drain(stream.open([stream.start(), 99]), rng)[0] == []
    assert stream.open_flows == 0


class Nested(ListStream):
    """A stream whose positions hold a list and nothing."""

    def start(self) -> Any:
        return [0, [1, None]]


def test_positions_that_somebody_changed_do_not_fit() -> None:
    stream = Nested({"x": [1, 2]})
    assert stream.fits_position([[3, (7, None)], 1])
    for at in (
        None,
        3,
        [],
        [0],
        [0, [1, 0]],
        [0, [-1, None]],
        ["0", [1, None]],
        [0, [1 << 62, None]],
        [0, [1, None, 2]],
    ):
        assert not stream.fits_position([at, 0])
    for position in (None, 3, [stream.start()], [stream.start(), -1], [stream.start(), 1.0], [stream.start(), "1"]):
        assert not stream.fits_position(position)
    assert [is_count(value) for value in (0, (1 << 62) - 1, 1 << 62, -1, 1.0, True, None)] == [True, True, *[False] * 5]
