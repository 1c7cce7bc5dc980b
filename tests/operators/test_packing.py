"""How documents are laid into rows."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.columns import TensorType
from cedar.core.errors import CedarError
from cedar.operators.pack import Pack
from cedar.operators.packing import best_fit, layout_best, layout_concat
from tests.toy_stream import ListStream, block_of, check, context, drain


def test_columns_are_packed_together_and_keep_their_dtype():
    source = ListStream({"a": [[1, 2], [3]], "b": [[0.5, 1.5], [2.5]], "name": ["x", "y"]})
    ((_, first), (_, second)) = check(Pack(2), [source])
    assert (first["a"], first["b"]) == ([1, 2], [0.5, 1.5])
    assert (second["a"], second["b"]) == ([3, 0], [2.5, 0.0])
    sample = Pack(2).sample(source.block(0))
    assert sample.types["b"] == TensorType((2,), "float64")
    assert sample.types["segment_ids"] == TensorType((2,), "int32")
    assert len(sample) == 2


def test_arrays_and_fixed_size_lists_are_packed_too():
    source = ListStream({"a": np.arange(6, dtype=np.int16).reshape(3, 2)})
    assert [row["a"] for _, row in check(Pack(4), [source])] == [[0, 1, 2, 3], [4, 5, 0, 0]]
    fixed = block_of({"a": [0, 0]}).with_columns({"a": pa.array([[1, 2], [3, 4]], pa.list_(pa.int8(), 2))})
    assert Pack(3).sample(fixed).columns["a"].tolist() == [[1, 2, 3], [4, 0, 0]]


@pytest.mark.parametrize("fit", ["concat", "best"])
@pytest.mark.parametrize(
    ("columns", "packed", "text"),
    [
        ({"a": [[1], [2, 3]], "b": [[1], [2]]}, (), "2 and 1 tokens"),
        ({"a": [[1], None]}, (), "missing"),
        ({"a": [[1], [2, None]]}, (), "missing number"),
        ({"a": [[1]]}, ("b",), "no column 'b'"),
        ({"a": ["x"]}, ("a",), "lists of numbers"),
        ({"a": ["x"]}, (), "no column is a list of numbers"),
        ({"positions": [[1]]}, (), "pack adds"),
    ],
)
def test_bad_input(fit, columns, packed, text):
    stream = Pack(4, packed, fit=fit).stream((ListStream(columns),), context())
    with pytest.raises(CedarError, match=text):
        drain(stream.open([stream.start(), 0]), random.Random(0))


@given(st.lists(st.integers(1, 10), max_size=40), st.integers(10, 16))
def test_best_fit_is_best_fit(sizes, room):
    bins = best_fit(np.array(sizes, dtype=np.int64), room)
    left: dict[int, int] = {}
    for item in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        fitting = [space for space in left.values() if space >= sizes[item]]
        number = int(bins[item])
        if fitting:
            assert left[number] == min(fitting)
        else:
            assert number not in left
        left[number] = left.get(number, room) - sizes[item]


def laid(layout):
    """The document, and the token in it, at each row and column."""
    places = {}
    parts = (layout.document, layout.offset, layout.tokens, layout.row, layout.column)
    for document, offset, tokens, row, column in zip(*(part.tolist() for part in parts), strict=True):
        for k in range(tokens):
            assert (row, column + k) not in places
            places[row, column + k] = (document, offset + k)
    return places


@given(st.lists(st.integers(0, 6), max_size=8), st.integers(1, 5), st.data())
def test_documents_run_on_and_are_cut_at_the_ends_of_rows(sizes, length, data):
    tokens = [(i, k) for i, size in enumerate(sizes) for k in range(size)]
    offset = data.draw(st.integers(0, len(tokens)))
    rows = data.draw(st.integers(0, (len(tokens) - offset) // length))
    layout = layout_concat(np.array(sizes, dtype=np.int64), offset, rows, length)
    assert laid(layout) == {
        divmod(place, length): token for place, token in enumerate(tokens[offset : offset + rows * length])
    }


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(1, 5))
def test_the_best_fit_lays_every_token_once_and_rows_by_their_first_document(sizes, length):
    layout = layout_best(np.array(sizes, dtype=np.int64), length)
    places = laid(layout)
    assert sorted(places.values()) == [(i, k) for i, size in enumerate(sizes) for k in range(size)]
    assert all(column < length for _, column in places)
    firsts = [min(token for (row, _), token in places.items() if row == n) for n in range(len({r for r, _ in places}))]
    assert firsts == sorted(firsts)
