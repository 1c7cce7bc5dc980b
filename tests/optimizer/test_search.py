"""What a search chooses where the answer is plain."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given

import cedar
from cedar import col
from cedar.optimizer.search import search
from cedar.plan import graph
from cedar.plan.data import Budget
from cedar.plan.steps.order import may_swap
from cedar.profile import Machine
from tests.optimizer.toy_profiles import facts_of, figures, names
from tests.optimizer.toy_searches import BOTH, ROWS, clean, gil_bound, late, pipelines, places, work


class Squares:
    """A map-style dataset."""

    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        return {"a": i * i}


@given(pipelines())
def test_the_chosen_graph_is_legal_complete_and_no_worse(made):
    root, found = made
    facts = facts_of(root, found)
    chosen = search(root, facts, Budget(), BOTH, 4)
    nodes = list(graph.walk(chosen.root))
    assert sorted(facts.ordinal(node) for node in nodes) == list(range(len(found)))
    for a, b in itertools.combinations(nodes[1:], 2):
        if facts.ordinal(a) > facts.ordinal(b):
            assert may_swap(b.logical, a.logical, facts) is None
    assert {node.place for node in nodes} <= set(BOTH)
    assert chosen.seconds <= chosen.written * (1 + 1e-9)
    assert chosen.method == "exact"


def test_a_filter_at_the_end_comes_first():
    root = cedar.from_items(ROWS).map(work, "a").map(clean, "b").filter(col("c") > 0).node
    found = {0: figures(1e-6), 1: figures(40e-6), 2: figures(10e-6), 3: figures(0.2e-6, keep=0.1)}
    chosen = search(root, facts_of(root, found), Budget(), ("threads",), 4)
    assert [name.split("(")[0] for name in names(chosen.root)[1:]] == ["filter", "map", "map"]
    assert 5 * chosen.seconds < chosen.written
    (decision,) = chosen.decisions
    assert decision.rule == "order"
    assert decision.applied
    assert decision.what.endswith("before map(work), map(clean)")
    assert decision.why == "keeps 10% of rows, costs 0.2 us; map(work) costs 40 us"
    assert chosen.root.inputs[0].inputs[0].origin is root.inputs[0].inputs[0] or chosen.root.origin is not None


def test_a_map_that_holds_the_gil_goes_to_processes():
    root, found = gil_bound()
    chosen = search(root, facts_of(root, found), Budget(), BOTH, 4)
    assert places(chosen) == {"read": "threads", "map": "processes", "filter": "threads"}
    assert chosen.executor == "threads"
    assert 1 / chosen.seconds > 3 * 1e4
    (decision,) = chosen.decisions
    assert decision.what == "map(work) in processes"
    assert decision.why.startswith("holds the GIL 100% of the time; 4")


def test_it_stays_where_shipping_costs_more():
    root, found = gil_bound()
    found[0] = figures(1e-7, columns={"a": 1e6, "b": 8.0})
    chosen = search(root, facts_of(root, found), Budget(), BOTH, 4)
    assert set(places(chosen).values()) == {"threads"}
    assert any("would not pay" in d.why for d in chosen.decisions if d.rule == "place")


def test_one_core_gains_nothing_from_processes():
    root, found = gil_bound()
    facts = facts_of(root, found, machine=Machine(1, 1 << 34))
    assert set(places(search(root, facts, Budget(), BOTH, 4)).values()) == {"threads"}
    root, found = gil_bound()
    assert set(places(search(root, facts_of(root, found), Budget(cpus=1), BOTH, 4)).values()) == {"threads"}


def test_a_source_read_from_its_beginning_stays():
    root, found = gil_bound()
    found[0] = figures(1e-4, gil=1.0, columns={"a": 8.0, "b": 8.0})
    free = search(root, facts_of(root, found), Budget(), BOTH, 4)
    bound = search(root, facts_of(root, found, streams=True), Budget(), BOTH, 4)
    assert places(free)["read"] == "processes" or places(free)["map"] == "processes"
    assert places(bound)["read"] != "processes"


def test_the_only_executor_is_the_place_of_all():
    root, found = gil_bound()
    for only in ("inline", "threads", "processes"):
        chosen = search(root, facts_of(root, found), Budget(), (only,), 4)
        assert set(places(chosen).values()) == {only}
        assert chosen.executor == only
    assert search(root, facts_of(root, found), Budget(), ("inline",), 4).workers == 1


def test_more_workers_where_waiting_limits():
    root = cedar.from_items(ROWS).map(work, "a").node
    facts = facts_of(root, {0: figures(1e-6), 1: figures(1e-5, wall=1e-3)})
    assert search(root, facts, Budget(), ("threads",), 4).workers == 4
    chosen = search(root, facts, Budget(), ("threads",), 4, most_workers=32)
    assert chosen.workers == 32
    assert search(root, facts, Budget(), ("threads",), 4, most_workers=1000).workers == 364


def test_one_thread_where_two_would_take_turns_with_the_gil():
    root, found = gil_bound()
    assert search(root, facts_of(root, found), Budget(), ("threads",), 4).workers == 4  # as the user said
    chosen = search(root, facts_of(root, found), Budget(), ("threads",), 4, most_workers=32)
    assert chosen.workers == 1
    found = {i: replace(f, gil=0.5) for i, f in found.items()}
    assert search(root, facts_of(root, found), Budget(), ("threads",), 4, most_workers=32).workers == 4


def test_a_dataset_goes_to_processes_by_itself():
    root = cedar.from_items(Squares()).node
    found = {0: figures(1e-4, gil=1.0, columns={"a": 8.0})}
    chosen = search(root, facts_of(root, found), Budget(), BOTH, 4)
    assert places(chosen) == {"read": "processes"}
    assert any("holds the GIL 100% of the time" in d.why for d in chosen.decisions if d.rule == "place" and d.applied)


def test_rows_on_their_way_fit_the_memory():
    root, found = gil_bound()
    found[0] = figures(1e-7, columns={"a": 1e6, "b": 8.0}, calls=10, rows=1000)
    chosen = search(root, facts_of(root, found), Budget(memory="500MB"), ("threads",), 4)
    assert chosen.workers == 2
    assert [d.rule for d in chosen.decisions] == ["memory"]


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(3))
def test_noise_of_a_tenth_seldom_changes_the_plan(seed):
    rng = random.Random(seed)
    pipeline = cedar.from_items(ROWS).map(work, "a").map(clean, "b").filter(col("c") > 0).map(work, "c")
    root = pipeline.filter(late, "d").filter(col("a") > 0).map(clean, "d").node
    cpus = [2e-6, 5e-5, 3e-5, 4e-7, 6e-5, 1e-6, 5e-7, 2e-5]
    keeps = [1, 1, 1, 0.5, 1, 0.4, 0.7, 1]

    def measure():
        noisy = [cpu * rng.uniform(0.9, 1.1) for cpu in cpus]
        found = {i: figures(cpu, keep=keep) for i, (cpu, keep) in enumerate(zip(noisy, keeps, strict=True))}
        chosen = search(root, facts_of(root, found), Budget(), BOTH, 4)
        return tuple((facts_node.logical.operator, facts_node.place) for facts_node in graph.walk(chosen.root))

    plans = [measure() for _ in range(10)]
    assert max(plans.count(plan) for plan in plans) >= 9


def test_a_filter_that_may_not_move_says_why():
    root = cedar.from_items(ROWS).map(work, "a").filter(col("a") > 0).node
    found = {0: figures(1e-6), 1: figures(40e-6), 2: figures(0.2e-6, keep=0.1)}
    chosen = search(root, facts_of(root, found), Budget(), ("threads",), 4)
    (decision,) = chosen.decisions
    assert not decision.applied
    assert "before map(work)" in decision.what
    assert "'a'" in decision.why


def test_an_operator_that_no_row_reached_says_so():
    root = cedar.from_items(ROWS).map(work, "a").filter(col("b") > 0).node
    facts = facts_of(root, {0: figures(1e-6), 1: figures(1e-5)})
    chosen = search(root, facts, Budget(), ("threads",), 4)
    assert names(chosen.root) == names(root)
    assert [(d.rule, d.applied) for d in chosen.decisions] == [("profile", False)]
