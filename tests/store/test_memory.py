"""Entries in memory: what comes out is what went in, whatever is done to it, within a budget."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.dlpack import from_dlpack

from cedar.core.block import Block
from cedar.core.columns import objects
from cedar.core.cursor import Keys
from cedar.store.memory import Memory
from tests import toy_entries
from tests.store.toy_stored import block
from tests.toy_entries import assert_same


def test_memory_keeps_a_part_of_a_loop_over_more_than_fits() -> None:
    size = block().nbytes
    memory = Memory(3 * size)
    for _ in range(3):
        hits = 0
        for name in "abcdef":
            found = memory.get("g", name)
            hits += found is not None
            if found is None:
                memory.put("g", name, [block()])
    assert hits == 3, "least recently used alone would keep nothing"
    assert memory.evicted == 0


def test_memory_forgets_another_plan_in_order_of_use() -> None:
    ticks = iter(range(100))
    memory = Memory(3 * block().nbytes, clock=lambda: float(next(ticks)))
    for name in "abc":
        memory.put("old", name, [block()])
    memory.get("old", "a")
    memory.get("new", "d")
    assert memory.put("new", "d", [block()])
    assert [memory.holds(n) for n in "abcd"] == [True, False, True, True]
    assert not memory.put("new", "e", [block(rows=1000)]), "more than the budget"


def test_memory_is_not_reached_by_what_is_done_to_rows() -> None:
    memory = Memory(1 << 20)
    numbers = pa.array(np.zeros(2, dtype=np.int64))
    given = Block({"x": np.zeros((2, 2)), "o": objects([[1], [2]]), "a": numbers}, Keys(np.arange(2)))
    memory.put("g", "n", [given])
    for write in (True, False, False):
        if write:
            given.columns["x"][:] = 7
        else:
            with pytest.raises(ValueError, match="read-only"):
                given.columns["x"][:] = 7
        given.columns["o"][0].append(5)
        from_dlpack(given.columns["a"])[:] = 7
        (given,) = memory.get("g", "n") or []
        assert given.columns["x"].sum() == 0
        assert given.columns["o"].tolist() == [[1], [2]]
        assert given.columns["a"].to_pylist() == [0, 0]


@given(st.lists(toy_entries.blocks(), max_size=3))
def test_memory_gives_back_what_it_got(blocks: list[Block]) -> None:
    memory = Memory(1 << 30)
    memory.put("g", "n", blocks)
    for a, b in zip(blocks, memory.get("g", "n") or [], strict=True):
        assert_same(a, b)
