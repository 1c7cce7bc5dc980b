"""Shuffle: the blocks of a window are joined into fewer ones, column by column."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar.core.block import Block, concat_blocks
from cedar.core.groups import GroupColumn, grouped
from cedar.operators import shuffle
from tests.operators.toy_times import TIMES
from tests.toy_stream import block_of


def window(rows: list[int], dead: bool, groups: list[bool]) -> list[Block]:
    """Blocks of numbers, lists and arrays, some of whose columns share rows."""
    blocks = []
    for number, (count, shares) in enumerate(zip(rows, groups, strict=True)):
        lists = pa.array([[i % 3] * (i % 4) for i in range(count)], pa.large_list(pa.int64()))
        columns = {"n": np.arange(count), "lists": lists, "wide": np.arange(4.0 * count).reshape(count, 4)}
        block = block_of(columns, first=100 * number, dead=[0] if dead and count > 1 else [])
        if shares:
            block = block.with_columns(grouped({"lists": block.columns["lists"]}))
        blocks.append(block)
    return blocks


@given(
    st.lists(st.tuples(st.integers(1, 20), st.booleans()), min_size=1, max_size=8), st.booleans(), st.integers(1, 2000)
)
def test_fewer_blocks_hold_the_same_rows(parts, dead, size):
    rows, groups = [count for count, _ in parts], [shares for _, shares in parts]
    expected = concat_blocks(window(rows, dead, groups))
    holder = window(rows, dead, groups)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shuffle, "_GROUP_BYTES", size)
        fewer = shuffle._join_blocks(holder)
    assert all(not block.columns for block in holder), "nothing else holds what was joined"
    assert len(fewer) <= min(len(rows), -(-expected.columns["wide"].nbytes // size))
    found = concat_blocks(fewer)
    assert list(found.columns) == list(expected.columns)
    assert found.dead == expected.dead
    assert np.array_equal(found.keys.hash(3), expected.keys.hash(3))
    assert [_plain(row) for row in found.rows()] == [_plain(row) for row in expected.rows()]


def _plain(row):
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in row.items()}


def test_columns_that_share_rows_go_on_sharing():
    (block,) = shuffle._join_blocks(window([5, 6], False, [True, True]))
    assert isinstance(block.columns["lists"], GroupColumn)


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_batches_do_not_tell_how_a_window_was_joined(size, monkeypatch):
    """Windows of several splits; the batches are those of all rows in order of their hashes."""
    rows = [{"n": i, "ids": list(range(i % 5))} for i in range(3000)]
    p = cedar.from_items(rows).shuffle(seed=3, window=2000).batch(700, last="keep")
    expected = [batch["n"].tolist() for batch in p.loader(format="numpy", plan="off", executor="inline")]
    monkeypatch.setattr(shuffle, "_GROUP_BYTES", size)
    batches = list(p.loader(format="numpy", plan="off", executor="inline"))
    assert [batch["n"].tolist() for batch in batches] == expected
    assert sorted(i for rows in expected for i in rows) == list(range(3000))
    for batch in batches:
        assert batch["ids"].to_list() == [list(range(n % 5)) for n in batch["n"].tolist()]


def order(p: cedar.Pipeline, name: str = "n") -> list[int]:
    with p.loader(plan="off", executor="inline") as loader:
        return [row[name] for row in loader]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("values", [[-0.0, 0.0], [True, 1, 1.0], [(0,), (False,)]])
def test_a_filter_and_a_shuffle_by_equal_values_commute(seed, values):
    """Equal values may have different hashes only if they are in different groups."""
    kind = float if values[0] == 0.0 else object
    rows = [*values, *values, *map(float, range(2, 30))]
    p = cedar.from_items([{"n": n, "x": n} for n in range(len(rows))]).map(lambda n: rows[n], "x", dtype=kind)
    shuffled = order(p.shuffle(seed=seed, by="x").filter(lambda n: n > 0, "n"))
    assert order(p.filter(lambda n: n > 0, "n").shuffle(seed=seed, by="x")) == shuffled


@pytest.mark.parametrize("kind", TIMES)
def test_rows_of_equal_times_stay_together_and_those_of_others_do_not(kind):
    rows = cedar.from_arrow(pa.table({"t": pa.concat_arrays([TIMES[kind]] * 4), "n": np.arange(16) % 4}))
    found = order(rows.shuffle(seed=1, by="t").select("n"))
    assert sorted(n for n, _ in itertools.groupby(found)) == [0, 1, 2, 3]


def test_rows_of_nan_are_one_group():
    p = cedar.from_items([{"x": x, "n": int(x == x)} for x in [float("nan")] * 4 + [1.0] * 4])
    assert order(p.shuffle(seed=1, by="x", interleave=2)) in ([0, 1] * 4, [1, 0] * 4)


@pytest.mark.parametrize("interleave", ["2", 2.5, 0, True])
def test_an_interleave_that_is_no_number_of_groups(interleave):
    with pytest.raises(cedar.PipelineError, match=r"shuffle\(interleave\) is") as caught:
        cedar.from_items([{"x": 1}]).shuffle(by="x", interleave=interleave)
    assert caught.value.site.file == __file__
