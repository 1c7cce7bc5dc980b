"""Streams: index plans are those of lists, and a flow continues where a position says."""

from __future__ import annotations

import random
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.block import Block
from cedar.core.cursor import Keys
from cedar.core.stream import PENDING, Fenced, GeneratorFlow, Piece, Pieces, Rows, Stream, concat_rows, is_count
from cedar.operators.base import StreamOperator
from cedar.operators.batch import Batch
from cedar.operators.shuffle import Shuffle
from cedar.operators.take import Repeat, SkipRows, Take
from tests.toy_stream import ListStream, block_of, context, drain

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


def count_down(numbers: list[int], events: list[str]) -> Pieces:
    """Yield a piece of each length; for a length below 0, raise an error."""
    events.append("opened")
    try:
        wait = yield PENDING
        for number in numbers:
            events.append(f"asked to {'wait' if wait else 'hurry'}")
            if number < 0:
                raise Fenced
            wait = yield Piece(Rows.of(block_of({"x": list(range(number))})), number)
    finally:
        events.append("left")


def test_a_generator_is_opened_with_its_flow_is_sent_wait_and_ends_once() -> None:
    events: list[str] = []
    flow = GeneratorFlow(count_down([2, 1], events))
    assert events == ["opened"]
    pieces = [flow.pull(True), flow.pull(False)]
    assert [piece.units for piece in pieces if isinstance(piece, Piece)] == [2, 1]
    assert [flow.pull(True) for _ in range(3)] == [None, None, None]
    flow.limit(3)  # does nothing
    assert events == ["opened", "asked to wait", "asked to hurry", "left"]


def test_an_error_of_a_generator_never_becomes_an_end() -> None:
    flow = GeneratorFlow(count_down([1, -1, 1], []))
    assert isinstance(flow.pull(True), Piece)
    for _ in range(3):
        with pytest.raises(Fenced):
            flow.pull(True)
    flow.close()
    with pytest.raises(RuntimeError, match="the flow is closed"):
        flow.pull(True)


def test_a_first_piece_in_place_of_pending_is_refused_and_not_lost() -> None:
    def pieces() -> Pieces:
        yield Piece(Rows.of(block_of({"x": [1]}, 0)), 0)

    with pytest.raises(TypeError, match="must yield PENDING before its first piece"):
        GeneratorFlow(pieces())


def test_a_cause_is_kept_when_an_error_is_raised_again() -> None:
    def pieces() -> Pieces:
        yield PENDING
        raise ValueError("broken") from KeyError("why")

    flow = GeneratorFlow(pieces())
    for _ in range(2):
        with pytest.raises(ValueError, match="broken") as caught:
            flow.pull(True)
        assert isinstance(caught.value.__cause__, KeyError)


def test_a_closed_flow_leaves_its_generator_and_closes_its_inputs() -> None:
    events: list[str] = []
    limits: list[int] = []
    source = ListStream({"x": [1, 2]})
    inputs = [source.open([source.start(), 0]) for _ in range(2)]
    flow = GeneratorFlow(count_down([1, 1], events), *inputs, limit=limits.append)
    flow.limit(7)
    flow.pull(True)
    assert source.open_flows == 2
    flow.close()
    assert source.open_flows == 0
    assert (events[-1], limits) == ("left", [7])
    flow.close()


class Windows(Stream):
    """Windows with memory of their own; each is free by the time the next is pulled."""

    def __init__(self, batch: bool = False) -> None:
        self.batch = batch
        self.made: list[weakref.ref[Any]] = []

    def start(self) -> Any:
        return 0

    def open_at(self, at: Any, lap: int) -> GeneratorFlow:
        return GeneratorFlow(self._pieces(at))

    def _pieces(self, at: int) -> Pieces:
        yield PENDING
        for number in range(at, 4):
            assert not any(column() is not None for column in self.made)
            yield self._piece(number)

    def _piece(self, number: int) -> Piece:
        column = np.arange(4)
        self.made.append(weakref.ref(column))
        rows = Rows.of(Block({"x": column}, Keys(np.arange(4))))
        return Piece(rows.take(np.array([1, 0, 3, 2])), number, 0, self.batch, ends_window=True)


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("operator", [Take(12), SkipRows(2), Repeat(2), Shuffle(), Batch(4), Batch(6)])
def test_a_flow_holds_no_window_while_the_next_is_pulled(operator: StreamOperator, batch: bool) -> None:
    if batch and isinstance(operator, Batch):
        return
    source = Windows(batch)
    stream = operator.stream((source,), context())
    flow = stream.open([stream.start(), 1])
    while flow.pull(True) is not None:
        pass
    assert len(source.made) >= 3


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
