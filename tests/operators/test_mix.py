"""mix."""

import json
import math
import random
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar.core.errors import PipelineError
from cedar.operators import mix
from cedar.operators.mix import ROUND, Draw, Mix, Schedule
from cedar.operators.take import Repeat
from tests.toy_stream import ListStream, check, context, drain, values

SEEDS = st.integers(0, 10**6)
WEIGHTS = st.floats(0.1, 10, allow_nan=False)


def model(draw, counts, stop):
    """(input, number of the unit in it) of every position."""
    taken, gone, start = [0] * len(counts), [False] * len(counts), 0
    order: list[tuple[int, int]] = []
    while True:
        while True:
            if all(gone):
                return order
            number, place = divmod(len(order) - start, ROUND)
            pick = int(draw.picks(start, number, gone)[place])
            if taken[pick] < counts[pick]:
                break
            if stop == "first":
                return order
            gone[pick], start = True, len(order)
        order.append((pick, taken[pick]))
        taken[pick] += 1


@st.composite
def mixes(draw):
    inputs = draw(st.integers(1, 4))
    weights = tuple(draw(WEIGHTS) for _ in range(inputs))
    operator = Mix(weights, seed=draw(st.integers(0, 5)), stop=draw(st.sampled_from(["first", "all"])))
    return operator, [draw(st.integers(0, 12)) for _ in weights]


@given(mixes(), SEEDS, st.booleans())
def test_picks_by_position(drawn, seed, known):
    operator, counts = drawn
    inputs = [
        ListStream({"x": [100 * i + k for k in range(n)]}, seed=seed + i, known=known, marks=[3])
        for i, n in enumerate(counts)
    ]
    units = check(operator, inputs, seed=seed)
    draw = Draw(context(seed=7).hash_seed(operator.seed), operator.weights)
    assert values(units) == [100 * i + k for i, k in model(draw, counts, operator.stop)]
    assert len({key for key, _ in units}) == len(units)
    if operator.stop == "all":
        assert len(units) == sum(counts)


@pytest.mark.heavy
@given(mixes(), SEEDS)
def test_batches_are_picked_whole(drawn, seed):
    operator, counts = drawn
    inputs = [ListStream({"x": [i] * (2 * n)}, seed=seed, sizes=[2] * n) for i, n in enumerate(counts)]
    units = check(operator, inputs, seed=seed, opens=3)
    draw = Draw(context(seed=7).hash_seed(operator.seed), operator.weights)
    assert [batch[0][1]["x"] for batch in units] == [i for i, _ in model(draw, counts, operator.stop)]
    assert all(len(batch) == 2 for batch in units)


@pytest.mark.parametrize("length", [1, 8, 1024])
@given(mixes())
def test_the_schedule_is_the_model_whatever_the_length_of_rounds(length, drawn):
    operator, counts = drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mix, "ROUND", length)
        patch.setattr(sys.modules[__name__], "ROUND", length)
        draw = Draw(99, operator.weights)
        order = model(draw, counts, operator.stop)
        schedule = Schedule(draw, counts, operator.stop)
        for unit in [len(order) + 2, *range(len(order) + 1)]:
            done, _, taken = schedule.at(unit)
            assert done == min(unit, len(order))
            assert list(taken) == [sum(i == k for i, _ in order[:unit]) for k in range(len(counts))]
        assert Schedule(draw, counts, operator.stop).total() == len(order)


@given(st.lists(st.one_of(WEIGHTS, st.floats(1e-9, 1e-6)), min_size=1, max_size=9), st.integers(0, 10**9), st.data())
def test_shares_of_rounds_are_exact_and_never_fall(weights, rounds, data):
    gone = data.draw(st.lists(st.booleans(), min_size=len(weights), max_size=len(weights)).filter(lambda g: not all(g)))
    draw = Draw(3, tuple(weights))
    before, after = draw.taken(77, rounds, gone), draw.taken(77, rounds + 1, gone)
    assert sum(before) == rounds * ROUND
    total = sum(w for w, g in zip(weights, gone, strict=True) if not g)
    for number, (weight, over) in enumerate(zip(weights, gone, strict=True)):
        share = 0 if over else rounds * ROUND * weight / total
        assert abs(before[number] - share) < 2 + math.log(len(weights)) + rounds * ROUND * 1e-12
        assert before[number] <= after[number]
    picks = draw.picks(77, rounds, gone)
    assert np.bincount(picks, minlength=len(weights)).tolist() == np.subtract(after, before).tolist()


def test_rounds_are_in_another_order_each():
    draw = Draw(3, (0.5, 0.5))
    first, second = (draw.picks(0, number, [False, False]) for number in (0, 1))
    assert (first != second).any()
    assert 400 < np.count_nonzero(np.diff(first)) < 620  # about as often as at random


def test_a_unit_far_away_is_found_at_once():
    schedule = Schedule(Draw(3, (0.7, 0.3)), [math.inf, math.inf], "first")
    done, _, taken = schedule.at(10**15)
    assert done == 10**15
    assert taken[0] == pytest.approx(7 * 10**14, rel=1e-9)


@pytest.mark.parametrize("weights", [(0.5, 0.5), (1.0, 1e-300)])
def test_a_mixture_of_billions_of_rows_is_counted(weights):
    assert Schedule(Draw(3, weights), [10**11, 10**11], "first").total() == pytest.approx(10**11 / weights[0], rel=1e-6)


@pytest.mark.heavy
def test_long_runs_are_mixed_alike_whatever_the_cuts():
    def run(longest, seed):
        inputs = tuple(ListStream({"x": list(range(9000))}, seed=seed, longest=longest, late=0.1) for _ in range(2))
        stream = Mix((1, 2), stop="all").stream(inputs, context({"x": pa.int64()}))
        return stream, drain(stream.open([stream.start(), 0]), random.Random(seed))

    stream, (units, positions, marks) = run(3000, 1)
    assert run(500, 2)[1][0] == units
    assert marks == []
    for unit in (4095, 4096, 9001, 17_999):
        for position in (positions[unit], stream.seek(unit)):
            rest = drain(stream.open(json.loads(json.dumps(position))), random.Random(unit))[0]
            assert rest == units[unit:]


def test_counts():
    def count(stop, *inputs):
        return Mix((1,) * len(inputs), stop=stop).stream(inputs, context()).count

    known, unknown = ListStream({"x": [1, 2, 3]}), ListStream({"x": [1]}, known=False)
    endless = Repeat().stream((known,), context())
    assert count("all", known, known) == 6
    assert count("all", known, endless) == math.inf
    assert count("first", endless, endless) == math.inf
    assert count("all", known, unknown) is None
    assert 3 <= count("first", known, endless) < 100


@pytest.mark.parametrize("weights", [(0, 1), (-1, 2), (math.nan, 1), (math.inf, 1), ("a", 1), (None,), 3, ()])
def test_bad_weights(weights):
    with pytest.raises(PipelineError) as caught:
        Mix(weights)
    assert caught.value.site is not None
    assert "mix([(a, 0.7), (b, 0.3)])" in str(caught.value)


def test_bad_stop_and_number_of_inputs():
    with pytest.raises(PipelineError, match="stop='never'"):
        Mix((1, 1), stop="never")
    with pytest.raises(PipelineError, match="2 weight"):
        Mix((1, 1)).schema({"x": pa.int64()})


def test_rows_and_batches_do_not_mix():
    with pytest.raises(PipelineError, match="not both"):
        Mix((1, 1)).batched(True, False)


@pytest.mark.heavy
def test_the_state_of_a_thousand_sources_is_small_and_tells_which_changed():
    def mixed(last):
        rows = [[{"x": i, "y": j} for j in range(3)] for i in range(1000)]
        rows[-1] += rows[0] * last
        return cedar.mix([(cedar.from_items(each), 1.0) for each in rows]).batch(8)

    loader = mixed(1).loader(executor="inline")
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    assert len(json.dumps(state)) < 4096
    again = mixed(1).loader(executor="inline")
    again.load_state_dict(state)
    assert next(iter(again))["x"].tolist() == next(batches)["x"].tolist()
    with pytest.raises(cedar.ResumeError, match="one of the sources 937 to 999 changed"):
        mixed(2).loader(executor="inline").load_state_dict(state)


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        (lambda step: None, "input 1 failed at step 0: TypeError"),
        (lambda step: 1 // step, "input 1 failed at step 0: ZeroDivisionError"),
        (lambda step: -1, r"weights of mix are \[1.0, -1.0\] at step 0"),
    ],
)
def test_a_schedule_that_gives_no_weight_is_named(schedule, says):
    rows = cedar.from_items([{"x": 1}])
    with pytest.raises(PipelineError, match=says) as caught:
        list(cedar.mix([(rows, 1), (rows, schedule)]))
    assert caught.value.site.file == __file__
