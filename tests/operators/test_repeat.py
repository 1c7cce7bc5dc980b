"""repeat."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.errors import PipelineError
from cedar.operators.repeat import Repeat, lap_of
from cedar.operators.take import Take
from tests.toy_stream import ListStream, check, context, drain, values

SEEDS = st.integers(0, 10**6)


def source(rows, seed=0, known=True, **kwargs):
    return ListStream({"x": list(range(rows))}, seed=seed, known=known, **kwargs)


@given(st.integers(0, 9), st.integers(0, 4), SEEDS, st.booleans(), st.integers(0, 2))
def test_passes_follow_one_another_with_keys_of_their_own(rows, n, seed, known, lap):
    units = check(Repeat(n), [source(rows, seed, known, marks=[2, 5])], seed=seed, lap=lap)
    assert values(units) == list(range(rows)) * n
    laps = [key[1] for key, _ in units]
    assert laps == [lap_of(lap, number) for number in range(n) for _ in range(rows)]
    assert len({key for key, _ in units}) == len(units)


@pytest.mark.heavy
@given(st.integers(1, 9), SEEDS, st.booleans())
def test_for_ever(rows, seed, known):
    units = check(Repeat(), [source(rows, seed, known)], seed=seed, limit=40)
    assert values(units) == [i % rows for i in range(40)]


@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), SEEDS)
def test_repeats_nest(rows, inner, outer, seed):
    import random

    source_ = source(rows, seed)
    nested = Repeat(outer).stream((Repeat(inner).stream((source_,), context()),), context())
    units, positions, _ = drain(nested.open([nested.start(), 0]), random.Random(seed))
    assert values(units) == list(range(rows)) * inner * outer
    assert len({key for key, _ in units}) == len(units)
    assert nested.count == len(units)
    for unit in range(0, len(units), 3):
        for position in (positions[unit], nested.seek(unit)):
            assert drain(nested.open(position), random.Random(unit))[0] == units[unit:]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), SEEDS)
def test_batches_repeat(sizes, seed):
    units = check(Repeat(2), [source(sum(sizes), seed, sizes=sizes)], seed=seed)
    assert [len(batch) for batch in units] == sizes * 2


def test_a_pass_ends_its_window_even_where_the_input_marks_none():
    import random

    stream = Repeat(2).stream((source(7),), context())
    assert drain(stream.open([stream.start(), 0]), random.Random(1))[2] == [6]


@pytest.mark.parametrize("known", [True, False])
def test_nothing_repeated_for_ever_is_an_error_not_a_hang(known):
    stream = Repeat().stream((source(0, known=known, late=0),), context())
    flow = stream.open([stream.start(), 0])
    with pytest.raises(PipelineError, match="nothing to give"):
        while flow.pull(True) is not None:
            pass


def test_nothing_repeated_a_few_times_is_nothing():
    assert check(Repeat(3), [source(0)]) == []
    assert check(Repeat(0), [source(4)]) == []


def test_counts():
    known, unknown = source(3), source(3, known=False)
    assert Repeat(4).stream((known,), context()).count == 12
    assert Repeat().stream((known,), context()).count == math.inf
    assert Repeat(0).stream((unknown,), context()).count == 0
    assert Repeat(2).stream((unknown,), context()).count is None
    endless = Repeat().stream((known,), context())
    assert Repeat(2).stream((endless,), context()).count == math.inf
    assert Take(5).stream((endless,), context()).seek(4)[1] == 0


@pytest.mark.parametrize("n", [-1, 0.5, "2"])
def test_bad_n(n):
    with pytest.raises(PipelineError, match="integer"):
        Repeat(n)
