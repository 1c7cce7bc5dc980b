"""Placement: the two rules against slow models, policies, and what a placement tells of itself."""

from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.errors import CedarError
from cedar.trainers.moe.placement import Placement, Policy, minmax, paper, place

popularities = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 50), st.integers(0, 2**62)), min_size=1, max_size=9)


def published(popularity, slots):
    """Algorithm 1 as it is printed, in exact fractions."""
    counts = popularity if any(popularity) else [1] * len(popularity)
    goal = [Fraction(c * slots, sum(counts)) for c in counts]
    replicas = [int(max(g, 1)) for g in goal]
    difference = [r - g for r, g in zip(replicas, goal, strict=True)]
    while sum(replicas) > slots:
        i = difference.index(max(difference))
        if replicas[i] > 1:
            replicas[i] -= 1
        difference[i] -= 1
    while sum(replicas) < slots:
        i = difference.index(min(difference))
        replicas[i] += 1
        difference[i] += 1
    return tuple(replicas)


def one_by_one(popularity, slots):
    """The next slot goes to the expert with the most tokens per replica."""
    counts = popularity if any(popularity) else [1] * len(popularity)
    replicas = [1] * len(counts)
    for _ in range(slots - len(counts)):
        load = [Fraction(c, r) for c, r in zip(counts, replicas, strict=True)]
        replicas[load.index(max(load))] += 1
    return tuple(replicas)


@given(popularities, st.integers(0, 40))
def test_paper_is_the_published_algorithm(popularity, extra):
    slots = len(popularity) + extra
    assert paper(popularity, slots) == published(popularity, slots)


@given(popularities, st.integers(0, 40))
def test_minmax_gives_slots_one_by_one(popularity, extra):
    slots = len(popularity) + extra
    assert minmax(popularity, slots) == one_by_one(popularity, slots)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=4), st.integers(0, 5))
def test_no_placement_has_a_smaller_largest_load_than_minmax(popularity, extra):
    n, slots = len(popularity), len(popularity) + extra
    best = min(
        max(Fraction(c, b - a) for c, a, b in zip(popularity, (0, *cuts), (*cuts, slots), strict=True))
        for cuts in combinations(range(1, slots), n - 1)
    )
    assert max(Fraction(c, r) for c, r in zip(popularity, minmax(popularity, slots), strict=True)) == best


@given(popularities, st.integers(1, 5), st.integers(0, 4), st.sampled_from(["paper", "minmax"]))
def test_every_slot_holds_an_expert_and_every_expert_a_slot(popularity, ranks, more, rule):
    slots = -(-len(popularity) // ranks) + more
    placed = place(popularity, ranks, slots, rule)
    assert len(placed.experts) == ranks * slots
    assert sorted(set(placed.experts)) == list(range(len(popularity)))
    assert placed.experts == tuple(sorted(placed.experts))
    for expert, count in enumerate(placed.replicas):
        assert 1 <= sum(expert in held for held in placed.hosts) <= min(ranks, count)


def test_the_most_uneven_popularity_takes_few_turns():
    assert paper([10**9] + [0] * 63, 4096) == (4096 - 63, *[1] * 63)
    assert minmax([10**9] + [0] * 63, 4096) == (4096 - 63, *[1] * 63)


def test_a_step_without_tokens_is_placed_evenly():
    assert paper([0, 0, 0], 7) == (3, 2, 2) == minmax([0, 0, 0], 7)


@pytest.mark.parametrize("rule", [paper, minmax])
def test_fewer_slots_than_experts_are_refused(rule):
    with pytest.raises(CedarError) as error:
        rule([1, 2, 3], 2)
    assert "3 experts do not fit into 2 slots" in str(error.value)
    with pytest.raises(CedarError, match="negative"):
        rule([1, -2], 2)


def test_replicas_that_do_not_fill_the_slots_are_refused():
    for replicas in ((2, 1), (4, 0), (5, 5)):
        with pytest.raises(CedarError, match="do not fill 2 ranks of 2 slots"):
            Placement(replicas, 2, 2)


def test_digests_tell_placements_apart():
    placements = [Placement(r, n, s) for r, n, s in (((3, 1), 2, 2), ((1, 3), 2, 2), ((3, 1), 4, 1), ((2, 2), 2, 2))]
    assert len({p.digest for p in placements}) == len(placements)
    assert Placement((3, 1), 2, 2).digest == placements[0].digest < 2**63
    assert placements[0].moved(placements[1]) == 2


def test_policies_follow_counts_in_their_own_time():
    counts = [(8, 0, 1), (1, 5, 5), (0, 0, 0), (2, 2, 9)]
    seen = {}
    for kind in ("symi", "static", "periodic", "ema", "oracle"):
        policy = Policy(kind, every=2, decay=0.5)
        basis, seen[kind] = policy.start(3), []
        for step, found in enumerate(counts):
            basis = policy.follow(basis, found, step)
            seen[kind].append(basis)
    assert seen["symi"] == seen["oracle"] == [counts[0], counts[1], counts[1], counts[3]]
    assert seen["static"] == [(0, 0, 0)] * 4
    assert seen["periodic"] == [(0, 0, 0), counts[1], counts[1], counts[3]]
    one = 1 << 16
    assert seen["ema"][:2] == [(8 * one, 0, one), (9 * one // 2, 5 * one // 2, 3 * one)]


@given(popularities, st.floats(0, 0.999))
def test_an_average_is_exact_in_whole_numbers(popularity, decay):
    policy = Policy("ema", decay=decay)
    basis = policy.start(len(popularity))
    for step in range(5):
        basis = policy.follow(basis, popularity, step)
    assert all(isinstance(value, int) for value in basis)
    for value, count in zip(basis, popularity, strict=True):
        assert count * 2**16 - 8 <= value <= count * 2**16


def test_bad_policies_are_refused():
    for bad in ({"kind": "sometimes"}, {"every": 0}, {"decay": 1.0}):
        with pytest.raises(ValueError, match="give|known"):
            Policy(**bad)
