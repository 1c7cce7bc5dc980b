"""Dealing: every unit once, at any sequence of world sizes."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar import ResumeError
from cedar.engine.streams.deal import Numbers, assigned_runs, epoch_end, remaining, steps_from

WORLDS = st.integers(1, 6)


def unknown(unit):
    """Units whose rows only a run can tell."""
    return None  # noqa: RET501


def units(total, world, rank, chunk, last):
    return [n for low, high in assigned_runs(total, world, rank, chunk, last) for n in range(low, high)]


@given(st.integers(0, 200), WORLDS, st.integers(1, 20), st.sampled_from(["drop", "keep", "pad"]))
def test_runs_cover_each_unit_once(total, world, chunk, last):
    assigned = [units(total, world, rank, chunk, last) for rank in range(world)]
    flat = sorted(itertools.chain(*assigned))
    if last == "drop":
        assert flat == list(range(total - total % world))
    elif last == "keep":
        assert flat == list(range(total))
        assert max(map(len, assigned)) - min(map(len, assigned)) <= 1
    else:
        assert flat == list(range(-(-total // world) * world))
    end = epoch_end(Numbers([(0, total)]), world, last, unknown)
    assert [len(d) for d in assigned] == [end.units(rank, last) for rank in range(world)]


@given(st.integers(1, 5), WORLDS, st.integers(1, 9))
def test_runs_without_end_cover_a_prefix(rounds, world, chunk):
    heads = []
    for rank in range(world):
        runs = itertools.islice(assigned_runs(math.inf, world, rank, chunk, "drop"), rounds)
        heads += [n for low, high in runs for n in range(low, high)]
    assert sorted(heads) == list(range(rounds * world * chunk))


SESSIONS = st.tuples(WORLDS, st.lists(st.integers(0, 40), min_size=6, max_size=6))  # a world, and what ranks take


@given(st.integers(0, 120), st.lists(SESSIONS, max_size=4), st.integers(1, 9))
def test_what_is_left_is_what_nobody_took(total, worlds, chunk):
    left = set(range(total))
    history = []
    for world, wanted in worlds:
        numbers = Numbers(remaining(total, history, "keep", unknown))
        taken = []
        for rank in range(world):
            mine = units(numbers.total, world, rank, chunk, "keep")[: wanted[rank]]
            taken.append(len(mine))
            got = [numbers.number(n) for n in mine]
            assert left.issuperset(got)
            left -= set(got)
        history.append([world, chunk, taken])
    intervals = remaining(total, history, "keep", unknown)
    assert [n for low, high in intervals for n in range(low, int(high))] == sorted(left)


@pytest.mark.parametrize("total", [10**10, math.inf])
@pytest.mark.parametrize("chunk", [1, 7])
def test_a_long_epoch_is_assigned_again_at_once(total, chunk):
    taken = 7 * 10**8
    assert remaining(total, [[4, chunk, [taken] * 4]], "keep", unknown) == [(4 * taken, total)]
    more = remaining(total, [[4, chunk, [taken, taken, taken + 1, taken]]], "keep", unknown)
    assert sum(high - low for low, high in more) == total - 4 * taken - 1


@given(st.lists(st.tuples(WORLDS, st.lists(st.integers(0, 30), min_size=6, max_size=6)), max_size=3))
def test_turns_leave_what_nobody_took(worlds):
    taken_units = set()
    history = []
    for world, wanted in worlds:
        numbers = Numbers(remaining(None, history, "keep", unknown))
        taken = wanted[:world]
        for rank, count in enumerate(taken):
            got = {numbers.number(turn * world + rank) for turn in range(count)}
            assert not got & taken_units
            taken_units |= got
        history.append([world, 1, taken])
    intervals = remaining(None, history, "keep", unknown)
    assert intervals[-1][1] == math.inf
    left = {n for low, high in intervals for n in range(low, int(min(high, 500)))}
    assert left == set(range(500)) - taken_units


def test_numbers_find_their_way_back():
    numbers = Numbers([(2, 5), (9, 12), (20, math.inf)])
    epoch = [numbers.number(n) for n in range(9)]
    assert epoch == [2, 3, 4, 9, 10, 11, 20, 21, 22]
    assert [numbers.rank_of(n) for n in epoch] == list(range(9))
    assert numbers.rank_of(7) is None
    assert list(numbers.spans(1, 7)) == [(3, 5), (9, 12), (20, 21)]


@given(
    st.none() | st.integers(0, 60),
    st.lists(st.tuples(WORLDS, st.integers(0, 9)), max_size=3),
    st.sampled_from(["drop", "keep", "pad"]),
)
def test_whole_steps_leave_all_from_one_unit_on(total, worlds, last):
    history = []
    for world, steps in worlds:
        left = Numbers(remaining(total, history, last, unknown))
        most = [None if total is None else epoch_end(left, world, last, unknown).units(r, last) for r in range(world)]
        history.append([world, 1, [steps if m is None else min(steps, m) for m in most]])
    taken = sum(sum(each) for _, _, each in history)
    left = [run for run in remaining(total, history, last, unknown) if run[0] < run[1]]
    end = math.inf if total is None else total
    assert left == ([(taken, end)] if taken < end else [])
    assert steps_from(total, history, last, unknown) == (taken if left else 0)


@pytest.mark.parametrize("total", [None, 100])
def test_parts_of_steps_are_refused(total):
    for taken in ([1, 0, 0], [3, 3, 2]):
        with pytest.raises(ResumeError, match="whole steps"):
            steps_from(total, [[2, 1, [4, 4]], [3, 1, taken]], "keep", unknown)
