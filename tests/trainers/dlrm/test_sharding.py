"""The planner: every table has a place, memory holds, and the highest load is near the least possible one."""

import itertools
from contextlib import suppress

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar.core.errors import CedarError
from cedar.trainers.dlrm.inputs import read_batch
from cedar.trainers.dlrm.options import FeatureOptions
from cedar.trainers.dlrm.sharding import look, place, place_exactly

tables = st.dictionaries(st.sampled_from("abcdefg"), st.tuples(st.integers(0, 20), st.integers(1, 9)), min_size=1)


def highest(costs, found, ranks):
    return max(sum(costs[name] for name, at in found.items() if at == rank) for rank in range(ranks))


@given(tables, st.integers(1, 3))
def test_the_highest_load_is_near_the_least_possible(drawn, ranks):
    costs = {name: float(cost) for name, (cost, _) in drawn.items()}
    found = place(costs, dict.fromkeys(costs, 1), ranks)
    assert found.keys() == costs.keys()
    every = itertools.product(range(ranks), repeat=len(costs))
    least = min(highest(costs, dict(zip(costs, ways, strict=True)), ranks) for ways in every)
    assert highest(costs, found, ranks) <= least * (4 / 3 - 1 / (3 * ranks)) + 1e-9  # Graham's bound of the start
    assert found == place(costs, dict.fromkeys(costs, 1), ranks)


@given(tables, st.integers(1, 3), st.integers(5, 40))
def test_no_rank_holds_more_than_it_may(drawn, ranks, memory):
    costs = {name: float(cost) for name, (cost, _) in drawn.items()}
    sizes = {name: size for name, (_, size) in drawn.items()}
    if sum(sizes.values()) > (memory - max(sizes.values())) * ranks:  # there may be no room
        with suppress(CedarError):
            place(costs, sizes, ranks, memory)
        return
    found = place(costs, sizes, ranks, memory)
    assert all(sum(sizes[name] for name in found if found[name] == rank) <= memory for rank in range(ranks))


def test_statistics_are_those_of_the_rows():
    offsets = torch.tensor([0, 2, 4, 4, 5])  # [1, 2] twice, nothing, [5]
    plain = cedar.JaggedTensor(torch.tensor([1, 2, 1, 2, 5]), offsets)
    group = cedar.InverseKeyedJaggedTensor.from_jagged({"a": plain})
    options = (FeatureOptions("a", 9), FeatureOptions("b", 9, table="t"))
    once, twice = look([read_batch({"a": group, "b": plain}, options, (), None)], options)
    assert (once.table, once.lookups, once.distinct) == ("a", 3, 3)
    assert (twice.table, twice.lookups, twice.distinct) == ("t", 5, 3)
    assert once.cost(8) == 7 * 3 + 8 * 3 < twice.cost(8)


def test_a_table_larger_than_a_rank_is_told():
    with pytest.raises(CedarError, match=r"table 'a' of 10 bytes does not fit: 2 rank\(s\) of 9 bytes"):
        place({"a": 1.0}, {"a": 10}, 2, 9)


@given(tables, st.integers(1, 3), st.integers(0, 30))
def test_the_solver_finds_the_least_highest_load_within_memory(drawn, ranks, memory):
    pytest.importorskip("ortools")
    costs = {name: float(cost) for name, (cost, _) in drawn.items()}
    sizes = {name: size for name, (_, size) in drawn.items()}
    fits = lambda found: (
        not memory or all(sum(sizes[name] for name in found if found[name] == rank) <= memory for rank in range(ranks))
    )
    every = [dict(zip(costs, ways, strict=True)) for ways in itertools.product(range(ranks), repeat=len(costs))]
    least = min((highest(costs, ways, ranks) for ways in every if fits(ways)), default=None)
    if least is None:
        with pytest.raises(CedarError, match="does not fit"):
            place_exactly(costs, sizes, ranks, memory)
        return
    found = place_exactly(costs, sizes, ranks, memory)
    assert fits(found)
    assert highest(costs, found, ranks) == pytest.approx(least)


def test_the_solver_beats_the_greedy_rule():
    pytest.importorskip("ortools")
    costs = {name: float(cost) for name, cost in zip("abcdefg", (16, 20, 12, 7, 6, 7, 9), strict=True)}
    sizes = dict.fromkeys(costs, 1)
    assert highest(costs, place_exactly(costs, sizes, 3), 3) == 26 < highest(costs, place(costs, sizes, 3), 3)
