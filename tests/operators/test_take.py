"""take and skip."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.errors import PipelineError
from cedar.operators.repeat import Repeat
from cedar.operators.take import SkipRows, Take
from tests.toy_stream import ListStream, check, context, values

SEEDS = st.integers(0, 10**6)


@st.composite
def toys(draw, known=None):
    rows = draw(st.integers(0, 25))
    dead = draw(st.lists(st.integers(0, rows - 1), unique=True, max_size=3)) if rows else []
    return ListStream(
        {"x": list(range(rows))},
        seed=draw(SEEDS),
        dead=dead,
        marks=draw(st.lists(st.integers(0, 25), max_size=4)),
        known=draw(st.booleans()) if known is None else known,
    )


def whole(source):
    return [None if i in source._dead else i for i in range(source.units)]


@given(toys(), st.integers(0, 30), SEEDS)
def test_take_gives_the_first_units(source, n, seed):
    assert values(check(Take(n), [source], seed=seed)) == whole(source)[:n]


@given(toys(), st.integers(0, 30), SEEDS)
def test_skip_gives_all_but_the_first_units(source, n, seed):
    assert values(check(SkipRows(n), [source], seed=seed)) == whole(source)[n:]


@given(st.lists(st.integers(1, 4), max_size=8), st.integers(0, 10), SEEDS)
def test_batches_are_counted_where_the_unit_is_the_batch(sizes, n, seed):
    def source():
        return ListStream({"x": list(range(sum(sizes)))}, sizes=sizes, seed=seed)

    batches = check(Take(10**6), [source()], seed=seed)
    assert [len(b) for b in batches] == sizes
    assert check(Take(n), [source()], seed=seed) == batches[:n]
    assert check(SkipRows(n), [source()], seed=seed) == batches[n:]


def test_counts():
    known, unknown = ListStream({"x": [1, 2, 3]}), ListStream({"x": [1, 2, 3]}, known=False)
    endless = Repeat().stream((known,), context())
    assert [Take(n).stream((known,), context()).count for n in (0, 2, 9)] == [0, 2, 3]
    assert [SkipRows(n).stream((known,), context()).count for n in (0, 2, 9)] == [3, 1, 0]
    assert Take(2).stream((unknown,), context()).count is None
    assert SkipRows(2).stream((unknown,), context()).count is None
    assert Take(7).stream((endless,), context()).count == 7
    assert SkipRows(7).stream((endless,), context()).count == math.inf


def test_take_lets_go_of_its_input_once_it_has_enough():
    source = ListStream({"x": list(range(10))}, late=0)
    flow = Take(1).stream((source,), context()).open([[[source.start(), 0], 0], 0])
    while (piece := flow.pull(True)) is not None and not getattr(piece, "units", 0):
        pass
    assert source.open_flows == 0
    assert flow.pull(True) is None


@pytest.mark.parametrize("operator", [Take, SkipRows])
@pytest.mark.parametrize("n", [-1, 1.5, "3", None, True])
def test_bad_n_names_the_users_line(operator, n):
    with pytest.raises(PipelineError, match="integer") as caught:
        operator(n)
    assert caught.value.site is not None
    assert caught.value.site.file == __file__
