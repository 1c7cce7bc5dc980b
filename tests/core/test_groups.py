import pickle
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.block import Block, concat_blocks
from cedar.core.boundary import as_column
from cedar.core.columns import nbytes, type_of
from cedar.core.cursor import Keys
from cedar.core.groups.column import GroupColumn, concat_each, cut_each, grouped, plain, take_each
from cedar.core.groups.encode import distinct, repeated
from cedar.core.groups.slices import slices_of
from cedar.operators.dedup_estimate import sliding_factor

_NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0]  # of other bits than float("nan")
_ITEMS = {
    "int64": (pa.int64(), st.integers(-2, 2)),
    "float": (pa.float64(), st.sampled_from([0.0, -0.0, 1.5, float("nan"), _NAN])),
    "half": (pa.float16(), st.sampled_from([np.float16(0), np.float16(1), np.float16("nan")])),
    "bool": (pa.bool_(), st.booleans()),
    "text": (pa.large_string(), st.sampled_from(["", "a", "aa"])),
    "small": (pa.int8(), st.integers(-1, 1)),
    "nested": (pa.large_list(pa.int32()), st.lists(st.integers(0, 1), max_size=2)),
    "struct": (pa.struct([("id", pa.int64()), ("w", pa.float32())]),
               st.fixed_dictionaries({"id": st.integers(0, 1), "w": st.sampled_from([0.0, 1.0])})),
}  # fmt: skip


def bits(value):
    """What two values have in common that are the same: floats by their bits."""
    if isinstance(value, list):
        return tuple(map(bits, value))
    if isinstance(value, dict):
        return tuple((name, bits(inner)) for name, inner in value.items())
    if isinstance(value, float | np.floating):
        return ("float", struct.pack("<d", value) if isinstance(value, float) else value.tobytes())
    return (type(value).__name__, value)


def bits_of(array):
    """The rows of an array by their bits; pyarrow alone would turn one NaN into another."""
    kind = array.type
    if pa.types.is_floating(kind):
        width = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[kind.bit_width]
        return [None if v is None else ("float", v) for v in array.view(width).to_pylist()]
    if pa.types.is_large_list(kind):
        inner = bits_of(array.values)
        bounds = array.offsets.to_pylist()
        there = array.is_valid().to_pylist()
        return [tuple(inner[bounds[i] : bounds[i + 1]]) if there[i] else None for i in range(len(array))]
    return [bits(v) for v in array.to_pylist()]


@st.composite
def arrays(draw, rows, kinds=tuple(_ITEMS)):
    kind, items = _ITEMS[draw(st.sampled_from(kinds))]
    nulls = draw(st.booleans())
    item = items | st.none() if nulls and draw(st.booleans()) else items
    some = draw(st.lists(st.lists(item, max_size=3), min_size=1, max_size=4))
    pool = [*some, None] if nulls else some
    values = [pool[i % len(pool)] for i in draw(st.lists(st.integers(0, 99), min_size=rows + 1, max_size=rows + 1))]
    return pa.array(values, pa.large_list(kind)).slice(1)  # an offset, as slices of blocks have


@st.composite
def tables(draw, columns=3, kinds=tuple(_ITEMS), most=12):
    rows = draw(st.integers(0, most))
    return {name: draw(arrays(rows, kinds)) for name in "abc"[: draw(st.integers(1, columns))]}


def model(table):
    """(inverse, first rows): a dict of what was seen, row by row."""
    seen, inverse, first = {}, [], []
    for i, row in enumerate(zip(*(bits_of(a) for a in table.values()), strict=True)):
        if row not in seen:
            seen[row] = len(first)
            first.append(i)
        inverse.append(seen[row])
    return inverse, first


@given(tables())
def test_distinct_rows_are_those_that_a_dict_finds(table):
    inverse, first = distinct(list(table.values()))
    assert (inverse.tolist(), first.tolist()) == model(table)


@given(tables())
def test_rows_that_repeat_are_told_from_those_that_do_not(table):
    found = repeated(list(table.values()))
    inverse, first = model(table)
    if found is None:
        assert len(first) == len(inverse)
    else:
        assert (found[0].tolist(), found[1].tolist()) == (inverse, first)


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
def test_neighbours_that_are_equal_are_found_and_rows_that_come_back_too(sessions, wider):
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


def lists(*rows):
    return pa.array(rows, pa.large_list(pa.int64()))


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


def test_a_group_as_a_column_from_elsewhere_is_plain():
    assert as_column(grouped({"a": lists([1], [1])})["a"]).to_pylist() == [[1], [1]]


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64(), 2), pa.list_(pa.float32(), 0), pa.large_list(pa.decimal128(9, 2))]
)
def test_other_kinds_of_lists_are_told_apart_too(kind):
    size = kind.list_size if pa.types.is_fixed_size_list(kind) else 1
    column = pa.array([[1] * size, None, [2] * size, [1] * size], kind)
    inverse, _ = distinct([column.slice(0)])
    assert inverse.tolist() == ([0, 1, 2, 0] if size else [0, 1, 0, 0])
    assert distinct([column.slice(2)])[0].tolist() == ([0, 1] if size else [0, 0])


# ---- lists that slide ------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 2), max_size=5), max_size=10), st.integers(0, 3))
def test_slices_give_every_row_back(rows, most):
    column = pa.array([[9], *rows], pa.large_list(pa.int64())).slice(1)
    held = slices_of(column, most)
    assert held.plain().to_pylist() == rows
    assert len(held.values) <= sum(map(len, rows))
    assert held.factor >= 1.0


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 3), st.integers(1, 4))
def test_histories_that_slide_hold_their_values_once(samples, length, shift, sessions):
    numbers = iter(range(10**6))
    rows = []
    for _ in range(sessions):
        shared = [next(numbers) for _ in range(length + (samples - 1) * shift)]
        rows += [shared[i * shift : i * shift + length] for i in range(samples)]
    held = slices_of(pa.array(rows, pa.large_list(pa.int64())))
    expected = length + (samples - 1) * min(shift, length)  # what slid by more than its length shares nothing
    assert len(held.values) == sessions * expected
    if shift <= length:
        assert held.factor == pytest.approx(sliding_factor(samples, length, shift))
