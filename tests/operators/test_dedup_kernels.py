"""Work on groups: once for equal rows where a mark allows it, on plain rows elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pytest

import cedar
from cedar import Skip
from cedar.core.errors import RowError
from cedar.operators.algebra import per_value
from cedar.operators.base import Effects, RowOperator
from tests.operators.toy_groups import GROUP, grouped_names, run, toy
from tests.toy_sessions import sessions


def test_functions_of_one_value_are_called_once_for_equal_rows(tmp_path):
    calls = []

    @per_value
    def counted(ids):
        calls.append(ids)
        return [i + 1 for i in ids]

    table = sessions(160, 16, 1.0)
    list(cedar.from_arrow(table).dedup(GROUP).map(counted, "a", dtype=list[int]).batch(160).loader(plan="off"))
    assert len(set(map(tuple, calls))) == 10
    assert len(calls) < 40  # a session may lie in several blocks


@pytest.mark.parametrize("batched", [False, True])
def test_functions_of_batches_see_unique_rows_where_they_are_marked(batched):
    sizes = []

    @per_value
    def counted(ids):
        sizes.append(len(ids))
        return cedar.JaggedTensor(ids.values + 1, ids.offsets) if batched else ids

    p = cedar.from_arrow(sessions(32, 8, 1.0)).dedup(GROUP).batch(16)
    p = p.map(counted, "a", dtype=list[int]) if batched else p.map(lambda ids: sizes.append(len(ids)) or ids, "a")
    batches = run(p, plan="off", executor="inline")
    assert set(sizes[-2:]) == ({2} if batched else {16})
    assert batches[0]["a"].unique == 2


def test_random_functions_and_those_without_a_mark_see_every_row():
    @per_value
    def drawn(ids, rng):
        return [int(rng.integers(1 << 30)) for _ in ids]

    p = cedar.from_arrow(sessions(32, 32, 1.0)).dedup(GROUP).map(drawn, "a", random=True, dtype=list[int]).batch(32)
    (batch,) = run(p, plan="off")
    assert batch["a"].unique == 32


def test_a_row_that_fails_is_blamed_or_skipped_as_without_groups():
    @per_value
    def picky(ids):
        if ids[0] == 2:
            raise ValueError("no twos")
        return ids

    rows = [{"a": [1]}, {"a": [2]}, {"a": [2]}, {"a": [1]}, {"a": [3]}]
    p = cedar.from_items(rows).dedup([["a"]])
    with pytest.raises(RowError, match="no twos") as raised:
        run(p.map(picky, "a", dtype=list[int]).batch(5))
    assert raised.value.row.row == 1
    with p.map(picky, "a", dtype=list[int], on_error=Skip()).batch(5).loader() as loader:
        (batch,) = loader
        assert batch["a"].expand()["a"].to_list() == [[1], [1], [3]]
        assert loader.report().skipped == {"map(picky)": 2}


def test_an_operator_from_elsewhere_sees_plain_columns():
    @dataclass(frozen=True)
    class Double(RowOperator):
        name = "double"

        def effects(self):
            return Effects(frozenset({"a"}), frozenset({"a"}))

        def schema(self, *inputs):
            return inputs[0]

        def bind(self, bound):
            def kernel(block, env):
                assert isinstance(block.columns["a"], pa.Array)
                lists = [[2 * i for i in ids] for ids in block.columns["a"].to_pylist()]
                return block.with_columns({"a": pa.array(lists, pa.large_list(pa.int64()))})

            return kernel

    batches = run(toy().dedup(GROUP).apply(Double()).batch(8))
    assert batches[0]["a"].expand()["a"].to_list() == [
        [2 * i for i in ids] for ids in toy().batch(8).loader().__iter__().__next__()["a"].to_list()
    ]
    assert grouped_names(batches[0]) == {"a", "b"}
