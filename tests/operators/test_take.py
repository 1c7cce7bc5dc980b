"""take and skip."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar.core.errors import PipelineError
from cedar.operators.take import Repeat, SkipRows, Take, lap_of
from tests.toy_stream import ListStream, check, context, drain, values

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


def test_the_count_of_a_repeat():
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


def test_rows_that_are_all_skipped_are_not_repeated_for_ever():
    def fails(x):
        raise ValueError(x)

    skip = cedar.Skip(refill=True)
    p = cedar.from_items([{"x": i} for i in range(100)]).map(fails, "x", dtype="int64", on_error=skip)
    with pytest.raises(cedar.CedarError, match="would continue forever"):
        next(iter(p.repeat().batch(4).loader(executor="inline")))


def test_repeat_is_an_error_if_skip_drops_every_row():
    p = cedar.from_items([{"x": i} for i in range(100)]).filter(lambda x: x % 2 == 0, "x").shuffle().skip(1000)
    with pytest.raises(cedar.CedarError, match="would continue forever"):
        next(iter(p.repeat().batch(4).loader(executor="inline")))


SEEDED = {
    "shuffle": lambda p, seed: p.shuffle(seed=seed),
    "sample": lambda p, seed: p.sample(n=9, seed=seed),
    "balance_classes": lambda p, seed: p.balance_classes("x", seed=seed),
    "split": lambda p, seed: p.split({"a": 0.5, "b": 0.5}, seed=seed)["a"],
    "mix": lambda p, seed: cedar.mix([(p, 1), (p, 1)], seed=seed),
}


@pytest.mark.parametrize("name", SEEDED)
def test_seeds_are_integers_of_python_or_numpy(name):
    rows = cedar.from_items([{"x": i} for i in range(20)])
    assert list(SEEDED[name](rows, np.int64(-7))) == list(SEEDED[name](rows, -7))
    for seed in (1.5, "7", True, None):
        with pytest.raises(PipelineError, match=rf"{name}\(seed\) is {seed!r}") as caught:
            SEEDED[name](rows, seed)
        assert caught.value.site.file == __file__
        assert caught.value.fix == "give an integer"
    assert list(SEEDED[name](rows, -(1 << 100))) == list(SEEDED[name](rows, 1 << 100))
