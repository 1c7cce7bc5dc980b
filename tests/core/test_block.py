"""Blocks: what is done to slots is what is done to a list of rows, of which some are dead."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.block import (
    Block,
    Observation,
    Skipped,
    concat_blocks,
    equal_frames,
    first_rows,
    frame_of,
    python_values,
)
from cedar.core.columns import UNKNOWN, blank, objects
from cedar.core.cursor import Keys
from cedar.core.errors import PipelineError
from tests.toy_blocks import block

WHY = Skipped(3, "map(f)", "broken")
slots = st.lists(st.none() | st.integers(0, 9), max_size=8)  # None: a dead slot


def block_of(rows: list[int | None], first: int = 0) -> Block:
    columns = {"x": pa.array([r for r in rows if r is not None], pa.int64())}
    dead = {i: WHY for i, row in enumerate(rows) if row is None}
    return Block(columns, Keys(np.arange(first, first + len(rows))), dead)


def rows_of(block: Block) -> list[tuple[int, int | None]]:
    """The number and the value of each slot."""
    values = dict(zip(block.live_slots().tolist(), block.columns["x"].to_pylist(), strict=True))
    assert set(values) | set(block.dead) == set(range(block.slots))
    return [(int(key), values.get(i)) for i, key in enumerate(block.keys.row)]


@given(slots, st.data())
def test_slots_are_taken_cut_and_joined_as_those_of_a_list(rows: list[int | None], data: st.DataObject) -> None:
    block, model = block_of(rows), list(enumerate(rows))
    index = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=6)) if rows else []
    assert rows_of(block.take(np.array(index, dtype=np.int64))) == [model[i] for i in index]
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    assert rows_of(block.slice(start, stop)) == model[start:stop]
    joined = concat_blocks([block.slice(start, stop), block_of(rows, 100), block.slice(0, start)])
    assert rows_of(joined) == [*model[start:stop], *((100 + i, row) for i, row in model), *model[:start]]


@given(slots, st.data())
def test_filters_take_the_slot_and_failures_leave_it(rows: list[int | None], data: st.DataObject) -> None:
    block = block_of(rows)
    live = [i for i, row in enumerate(rows) if row is not None]
    keep = data.draw(st.lists(st.booleans(), min_size=len(live), max_size=len(live)))
    lost = {i for i, kept in zip(live, keep, strict=True) if not kept}
    left = [(i, row) for i, row in enumerate(rows) if i not in lost]
    assert rows_of(block.filter(np.array(keep, dtype=bool))) == left
    killed = block.kill({n: WHY for n, kept in enumerate(keep) if not kept})
    assert rows_of(killed) == [(i, None if i in lost else row) for i, row in enumerate(rows)]
    assert (len(killed), killed.slots) == (sum(keep), len(rows))
    assert killed.live_keys().row.tolist() == [i for i in live if i not in lost]


def test_columns_of_nulls_without_rows_are_of_a_type_that_nobody_knows() -> None:
    some = Block({"x": pa.nulls(1), "y": pa.array([1])}, Keys(np.arange(1)))
    assert some.known_types == some.types
    none = some.slice(0, 0)
    assert none.known_types == {"x": UNKNOWN, "y": pa.int64()}
    assert blank(UNKNOWN, 2).equals(pa.nulls(2))
    dead = Block({"x": pa.nulls(0)}, Keys(np.arange(1)), {0: WHY})
    assert concat_blocks([dead, block_of([7])]).columns["x"].to_pylist() == [7]
    assert [block.is_nothing for block in (some, none, none.only_columns({}))] == [False, False, True]


def test_rows_are_plain_values_and_arrays() -> None:
    columns = {"n": np.array([1, 2]), "t": np.eye(2), "o": objects([{}, None]), "s": pa.array(["a", None])}
    rows = list(Block(columns, Keys(np.arange(2))).rows())
    assert [(row["n"], row["o"], row["s"], row["t"].tolist()) for row in rows] == [
        (1, {}, "a", [1.0, 0.0]),
        (2, None, None, [0.0, 1.0]),
    ]
    assert type(rows[0]["n"]) is int
    assert list(Block({}, Keys(np.arange(2))).rows()) == [{}, {}]
    assert python_values(pa.array([[1], None])) == [[1], None]


def test_a_time_that_python_would_cut_is_refused() -> None:
    times = Block({"t": pa.array([1000, 1001], pa.time64("ns"))}, Keys(np.arange(2)))
    assert next(times.slice(0, 1).rows())["t"].microsecond == 1
    with pytest.raises(PipelineError, match="column 't' .*without a Python type"):
        list(times.rows())


def test_values_that_python_has_no_type_for_name_their_column() -> None:
    late = pa.array([1 << 62], pa.timestamp("s"))
    with pytest.raises(PipelineError, match="column 'when' of timestamp") as caught:
        list(Block({"when": late}, Keys(np.arange(1))).rows())
    assert "col('when').cast" in str(caught.value)
    lists = pa.array([[1 << 62]], pa.large_list(pa.timestamp("s")))
    with pytest.raises(PipelineError, match="column 'when' of large_list") as caught:
        list(Block({"when": lists}, Keys(np.arange(1))).rows())
    assert caught.value.fix == "convert it, or drop('when')"


def test_every_kind_of_column_becomes_one_of_a_frame():
    frame = frame_of(block(x=[1, 2], t=np.zeros((2, 3)), o=objects([{1}, {2}]), s=pa.array(["a", None])))
    assert frame["x"].to_list() == [1, 2]
    assert frame["t"].to_list() == [[0.0] * 3] * 2
    assert frame["o"].to_list() == [{1}, {2}]
    assert frame["s"].to_list() == ["a", None]


def test_a_frame_of_sliced_lists_of_a_fixed_size_has_their_nulls() -> None:
    lists = pa.array([[1, 2], None, [3, 4], [5, 6]], pa.list_(pa.int64(), 2))
    frame = frame_of(block(x=lists, n=[0, 1, 2, 3]).slice(1, 4))
    assert frame["x"].to_list() == [None, [3, 4], [5, 6]]
    assert frame["n"].to_list() == [1, 2, 3]
    assert frame_of(Block({}, Keys(np.arange(2)))).is_empty()


@pytest.mark.parametrize("kind", [pa.decimal256(50, 2), pa.month_day_nano_interval(), pa.timestamp("us", "+05:30")])
def test_a_frame_cannot_have_types_that_polars_lacks(kind: pa.DataType) -> None:
    with pytest.raises(PipelineError, match=f"column 'x' of {re.escape(str(kind))}: polars has no such type"):
        frame_of(block(n=[1], x=pa.nulls(1, kind)))


@pytest.mark.parametrize("size", [1, 3, 10])
def test_parts_are_the_same_wherever_rows_were_cut(monkeypatch, size):
    monkeypatch.setattr("cedar.core.block._FRAME_ROWS", 4)
    cut = [frame_of(block(x=list(range(start, min(start + size, 10))))) for start in range(0, 10, size)]
    assert [part["x"].to_list() for part in equal_frames(cut)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_no_more_blocks_are_read_than_the_first_rows_need():
    read = []

    def blocks():
        for start in (0, 2, 4):
            read.append(start)
            yield block(x=[start, start + 1])

    assert first_rows(blocks(), 3)["x"].to_list() == [0, 1, 2]
    assert read == [0, 2]
    assert first_rows(iter([]), 3).is_empty()


def test_two_calls_are_seen_as_one() -> None:
    one = Observation(3, 2, 30, 20, 0.5, 0.25, {"x": 5, "y": 1})
    two = Observation(1, 1, 10, 10, 0.25, 0.125, {"y": 2, "z": 7})
    assert one + two == Observation(4, 3, 40, 30, 0.75, 0.375, {"x": 5, "y": 3, "z": 7})
    assert one + Observation(0, 0, 0, 0, 0.0, 0.0) == one
