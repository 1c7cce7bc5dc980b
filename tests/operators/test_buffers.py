"""What stream operators share: units that wait, pieces cut again, and tasks in progress."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.errors import PipelineError
from cedar.core.stream import PENDING, Piece, Rows
from cedar.operators.buffers import Buffer, OrderedTasks, chunked, keep_columns
from tests.toy_stream import ListStream, block_of, drain

SEEDS = st.integers(0, 10**6)


@given(st.integers(0, 20), st.lists(st.integers(1, 6), max_size=5), SEEDS)
def test_units_are_taken_in_order_whatever_the_pieces_and_known_by_their_position(rows, takes, seed):
    source = ListStream({"x": list(range(rows))}, seed=seed)
    start = [source.start(), 0]
    buffer = Buffer(source.open(start), start)
    taken: list[int] = []
    for units in takes:
        while buffer.units < units and not buffer.ended:
            buffer.fill(True)
        runs = buffer.take(min(units, buffer.units))
        taken += [row["x"] for run in runs for row in run.gather().rows()]
        rest, _, _ = drain(source.open(buffer.position), random.Random(seed))
        assert [row["x"] for _, row in rest] == list(range(len(taken), rows))
    buffer.close()
    assert taken == list(range(min(sum(takes), rows)))
    assert source.open_flows == 0


@given(st.integers(0, 20), st.integers(1, 6), SEEDS)
def test_chunks_have_so_many_units_but_for_the_last(rows, units, seed):
    source = ListStream({"x": list(range(rows))}, seed=seed, late=0)
    start = [source.start(), 0]
    flow = chunked(source.open(start), start, units)
    sizes = []
    while isinstance(piece := flow.pull(True), Piece):
        sizes.append(piece.units)
    assert sizes == [units] * (rows // units) + [rows % units] * (rows % units > 0)


def test_results_come_in_order_and_an_error_in_its_turn():
    futures: list[Future[str]] = [Future(), Future()]
    begun: Iterator[tuple[str, Future[str] | None]] = iter([("a", futures[0]), ("b", futures[1]), ("c", None)])

    def step(wait: bool) -> tuple[str, Future[str] | None]:
        for each in begun:
            return each
        raise ValueError("broken")

    ahead: OrderedTasks[str] = OrderedTasks(step)
    futures[1].set_result("second")
    assert ahead.pull(False) is PENDING  # the first is not there yet
    futures[0].set_result("first")
    assert [ahead.pull(True) for _ in range(3)] == [("a", "first"), ("b", "second"), ("c", None)]
    with pytest.raises(ValueError, match="broken"):
        ahead.pull(True)


def test_tasks_that_have_not_begun_are_cancelled_at_the_end():
    waiting: Future[int] = Future()
    steps = iter([("a", waiting), None])
    ahead: OrderedTasks[str] = OrderedTasks(lambda wait: next(steps))
    assert ahead.pull(False) is PENDING
    ahead.close()
    assert waiting.cancelled()
    assert ahead.pull(True) is None


def test_rows_are_narrowed_to_columns_that_are_there():
    rows = Rows.of(block_of({"x": [1, 2], "y": [3, 4]}))
    assert list(keep_columns(rows, ["y"], "pack", None).gather().rows()) == [{"y": 3}, {"y": 4}]
    with pytest.raises(PipelineError, match="no column 'z'") as caught:
        keep_columns(rows, ["z"], "pack", None)
    assert "pack" in caught.value.what
