"""Groups: rows that repeat are held once, whatever is done to them, and every row comes back."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.block import Block, concat_blocks
from cedar.core.columns import nbytes, type_of
from cedar.core.cursor import Keys
from cedar.core.groups import GroupColumn, concat_each, cut_each, grouped, plain, take_each
from tests.core.toy_groups import bits_of, lists, model, tables


@given(tables())
def test_a_group_holds_each_distinct_row_once_and_gives_every_row_back(table):
    columns = grouped(table)
    inverse, first = model(table)
    for name, column in columns.items():
        assert column.sharing is columns["a"].sharing
        assert column.sharing.inverse.dtype == np.int32
        assert column.sharing.inverse.tolist() == inverse
        assert len(column.values) == len(first)
        assert type_of(column) == table[name].type
        assert bits_of(column.plain()) == bits_of(table[name])


@pytest.mark.parametrize("sessions", [[0] * 5 + [1] * 4 + [2] * 7, [0, 0, 0, 1, 1, 1, 0, 0, 1, 2, 2, 2], range(12)])
@pytest.mark.parametrize("wider", [False, True])
def test_neighbors_that_are_equal_are_found_and_rows_that_come_back_too(sessions, wider):
    """``wider``: a column that changes where the other does not."""
    lists = [[[1, 2], [], [3, 3, 3]][s % 3] + [s] for s in sessions]
    table = {"a": pa.array(lists, pa.large_list(pa.int64()))}
    if wider:
        table["b"] = pa.array([[i // 4] for i in range(len(lists))], pa.large_list(pa.int32()))
    inverse, first = model(table)
    found = grouped(table)
    for name, column in found.items():
        assert column.sharing.inverse.tolist() == inverse
        assert column.values.to_pylist() == [table[name][i].as_py() for i in first]


def block_of(table):
    rows = len(next(iter(table.values())))
    return Block({**table, "row": pa.array(np.arange(rows))}, Keys(np.arange(rows)))


_STEPS = st.lists(
    st.tuples(st.sampled_from("take cut twice filter pickle again".split()), st.randoms(use_true_random=False)),
    max_size=4,
)


@given(tables(kinds=("int64", "float", "text")), _STEPS)
def test_rows_are_the_same_whatever_is_done_to_blocks_with_groups_and_without(table, steps):
    one, other = block_of(table), block_of(table)
    one = one.with_columns(grouped(table))
    for what, random in steps:
        n = one.slots
        if what == "take":
            index = np.array([random.randrange(n) for _ in range(random.randrange(n + 1))] if n else [], dtype=np.int64)
            one, other = one.take(index), other.take(index)
        elif what == "cut":
            start = random.randrange(n + 1)
            stop = random.randrange(start, n + 1)
            one, other = one.slice(start, stop), other.slice(start, stop)
        elif what == "twice":
            one, other = concat_blocks([one, other, one]), concat_blocks([other, other, other])
        elif what == "filter":
            keep = np.array([random.random() < 0.5 for _ in range(n)], dtype=bool)
            one, other = one.filter(keep), other.filter(keep)
        elif what == "pickle":
            one = pickle.loads(pickle.dumps(one))
        else:
            one = one.with_columns(grouped({name: one.columns[name] for name in table}))
        assert one.columns["row"].equals(other.columns["row"])
        for name in table:
            assert bits_of(plain(one.columns[name])) == bits_of(other.columns[name])
    ended = grouped({name: one.columns[name] for name in table})
    inverse, first = model({name: other.columns[name] for name in table})
    assert ended["a"].sharing.inverse.tolist() == inverse
    assert ended["a"].sharing.stored_rows == len(first) <= max(len(other), 0)
    assert len({id(column.sharing) for column in ended.values()}) == 1


def test_taking_fewer_rows_than_are_held_lets_the_others_go():
    columns = take_each(grouped({"a": lists([1], [2], [3], [4]), "b": lists([], [], [], [])}), np.array([3, 3]))
    assert columns["a"].values.to_pylist() == [[4]]
    assert columns["a"].sharing is columns["b"].sharing


def test_a_cut_copies_nothing_and_pickling_it_takes_its_own_rows_along():
    whole = grouped({"a": pa.array([list(range(i, i + 50)) for i in range(1000)], pa.large_list(pa.int64()))})
    part = cut_each(whole, 5, 7)["a"]
    assert part.values is whole["a"].values
    assert nbytes(part) < nbytes(whole["a"]) / 100
    assert len(pickle.dumps(part)) < 3000
    assert pickle.loads(pickle.dumps(part)).plain().to_pylist() == [list(range(5, 55)), list(range(6, 56))]


def test_a_cut_grouped_anew_holds_its_own_rows_where_they_lie():
    whole = grouped({"a": pa.array([[i // 4, 7] for i in range(400)], pa.large_list(pa.int64()))})
    again = grouped(cut_each(whole, 6, 14))["a"]
    assert again.values.to_pylist() == [[1, 7], [2, 7], [3, 7]]
    assert again.sharing.inverse.tolist() == [0, 0, 1, 1, 1, 1, 2, 2]
    assert again.values.buffers()[3].address == whole["a"].values.buffers()[3].address


def test_columns_that_share_before_a_pickle_share_after_it():
    columns = pickle.loads(pickle.dumps(cut_each(grouped({"a": lists([1], [1], [2]), "b": lists([], [], [])}), 0, 2)))
    assert columns["a"].sharing is columns["b"].sharing
    assert columns["a"].sharing.stored_rows == 1


def test_joined_blocks_share_and_hold_equal_rows_once_after_grouping_anew():
    first = grouped({"a": lists([1], [1]), "b": lists([2], [2])})
    joined = concat_each([first, grouped({"a": lists([1], [3]), "b": lists([2], [4])})])
    assert joined["a"].sharing is joined["b"].sharing
    assert joined["a"].sharing.stored_rows == 3
    assert grouped(joined)["a"].values.to_pylist() == [[1], [3]]


def test_groups_and_plain_columns_join():
    joined = concat_each([{"a": lists([1], [2])}, grouped({"a": lists([2], [2])}), {"a": lists([5])}])
    assert isinstance(joined["a"], GroupColumn)
    assert joined["a"].plain().to_pylist() == [[1], [2], [2], [2], [5]]
    assert grouped(joined)["a"].values.to_pylist() == [[1], [2], [5]]


def test_values_that_become_equal_are_held_once():
    columns = grouped({"a": lists([1], [2], [1]), "b": lists([7], [7], [7])})
    changed = columns | {"a": GroupColumn(lists([0], [0]), columns["a"].sharing, fresh=False)}
    again = grouped(changed)
    assert again["a"].values.to_pylist() == [[0]]
    assert again["b"].sharing.inverse.tolist() == [0, 0, 0]


def test_without_one_of_its_columns_a_group_may_hold_fewer_rows():
    columns = grouped({"a": lists([1], [2], [1]), "b": lists([7], [7], [7])})
    assert grouped({"b": columns["b"]})["b"].values.to_pylist() == [[7]]
