"""Columns: the bytes that their rows take."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core import columns
from cedar.core.jagged import JaggedTensor

LEAVES = st.sampled_from([pa.int64(), pa.bool_(), pa.float32(), pa.large_string(), pa.large_binary()])
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(pa.large_list, inner),
        st.builds(lambda kind: pa.list_(kind, 2), inner),
        st.builds(lambda kind: pa.struct([("a", kind), ("b", pa.int8())]), inner),
    ),
    max_leaves=3,
)


def some_value(kind, i):
    if i % 7 == 3:
        return None
    if pa.types.is_large_list(kind):
        return [some_value(kind.value_type, i + k) for k in range(i % 4)]
    if pa.types.is_fixed_size_list(kind):
        return [some_value(kind.value_type, i + k) for k in range(2)]
    if pa.types.is_struct(kind):
        return {"a": some_value(kind.field("a").type, i + 1), "b": 1}
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return "x" * (i % 5) if pa.types.is_large_string(kind) else b"y" * (i % 5)
    return i % 2 == 0 if pa.types.is_boolean(kind) else i


@given(NESTED, st.integers(0, 60), st.integers(0, 60), st.integers(0, 60))
def test_the_bytes_of_a_column_are_those_of_its_rows(kind, rows, start, count):
    whole = pa.array([some_value(kind, i) for i in range(rows)], kind)
    part = whole.slice(min(start, rows), count)
    assert columns.nbytes(part) == pytest.approx(part.nbytes, abs=8 + 2 * count), "but for bits of masks"


@given(NESTED, st.integers(0, 60), st.integers(0, 60), st.integers(0, 60), st.data())
def test_rows_are_taken_as_python_takes_them(kind, rows, start, count, data):
    """Of parts of arrays, with nulls at any depth and items below null lists; in any order, some of them often."""
    whole = below_nulls(pa.array([some_value(kind, i) for i in range(rows)], kind))
    part, beside = whole.slice(min(start, rows), count), pa.array(range(rows)).slice(min(start, rows), count)
    index = data.draw(st.lists(st.integers(0, len(part) - 1), max_size=80)) if len(part) else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "_MIN_ROWS_TO_GATHER", data.draw(st.sampled_from([0, 10, 1000])))
        taken = columns.take_arrays([beside, part, part], np.array(index, dtype=np.int64))
    held = part.to_pylist()
    assert taken[0].to_pylist() == [beside[i].as_py() for i in index]
    for array in taken[1:]:
        array.validate(full=True)
        assert array.type == kind
        assert array.to_pylist() == [held[i] for i in index]


def below_nulls(array):
    """The same values; below null lists there are items all the same."""
    if not pa.types.is_large_list(array.type) or not len(array):
        return array
    alive = array.is_valid()
    full = pa.array([row if row is not None else [None] for row in array.to_pylist()], array.type)
    bits = [alive.buffers()[1], full.buffers()[1]]
    return pa.Array.from_buffers(array.type, len(array), bits, children=[full.values])


def test_no_row_beyond_the_end_is_taken():
    lists = pa.array([[1], [2, 3]] * 400, pa.large_list(pa.int64()))
    for index in (np.arange(800)[::-1] + 1, np.arange(800) + 1):
        with pytest.raises(IndexError):
            columns.take(lists, index)


def test_columns_of_batches_that_are_handed_over_have_their_bytes():
    numbers, starts = np.arange(6), np.array([0, 2, 6])
    inner = JaggedTensor(numbers, starts)
    assert columns.nbytes(inner) == 48 + 24
    assert columns.nbytes(JaggedTensor(inner, np.array([0, 2]))) == 72 + 16
    assert columns.nbytes({"a": numbers, "b": {"c": inner}}) == 48 + 72
    assert columns.nbytes(JaggedTensor(["text"] * 6, starts)) > 24


def test_nbytes_of_objects_that_are_classes():
    class Odd:
        def nbytes(self):
            return 1

    assert columns.nbytes(columns.objects([np.ndarray, Odd(), np.zeros(9), None])) == 3 * 64 + 72
