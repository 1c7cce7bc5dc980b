"""How documents are laid into rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cedar.operators.packing import best_fit, layout_best, layout_concat


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
