"""What is predicted of a graph as it stands, and what the loader itself takes."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar.datasets.split_table import SplitTable
from cedar.engine.delivery.loader import Loader
from cedar.engine.delivery.options import Options
from cedar.optimizer.arrange import Arranged, find_precedence, steps_of
from cedar.optimizer.cost import RESOURCES, total
from cedar.optimizer.flow import find_flow, find_loads
from cedar.optimizer.predict import as_lowered
from cedar.optimizer.search import predict_lowered, search
from cedar.pipeline.planning import planner_for
from cedar.plan import graph
from cedar.plan.data import Budget
from cedar.plan.lower import Choice, lower
from cedar.plan.saved import plan_from, text_of
from cedar.plan.steps.order import may_swap
from cedar.store.cache import Store
from tests.optimizer.toy_profiles import MACHINE, facts_of, figures, model_of
from tests.optimizer.toy_searches import BOTH, late, pipelines, work
from tests.toy_plans_random import profile

ROWS = [{"a": 1.0, "b": 2.0}]


@given(pipelines())
def test_the_plan_that_was_found_is_foreseen_as_it_was_predicted(made):
    root, found = made
    facts = facts_of(root, found)
    plan = search(root, facts, Budget(), BOTH, 4)
    again = predict_lowered(plan.root, replace(facts, root=plan.root), Budget(), BOTH, plan.workers)
    assert 1 / again.rows_per_second == pytest.approx(plan.seconds)


def shipped(root, facts, choice):
    """Bytes per row read that stages in other processes are sent and send back, stage by stage."""
    physical = lower(root, choice, facts.logical)
    flow = find_flow(root, facts, find_loads(root, facts))

    def size(number):
        node, needs = physical.nodes[number], flow.needs[id(physical.nodes[number])]
        sizes = flow.sizes[id(node)]
        return flow.rate[id(node)] * sum(sizes[name] for name in sizes if needs is None or name in needs)

    total = 0.0
    for stage in physical.stages:
        if stage.place == "processes":
            total += size(stage.out) + sum(size(physical.stages[i].out) for i in stage.inputs)
    return total


@given(pipelines(), st.sampled_from([1, 64]), st.booleans(), st.randoms(use_true_random=False))
def test_what_a_search_prices_are_the_stages_that_would_run(made, splits, cached, draw):
    root, found = made
    if cached:
        root = cedar.Pipeline(root).cache().filter(late, "a").map(work, "d").node
        found = found | {len(found) + 1: figures(1e-6, keep=0.5), len(found) + 2: figures(1e-5)}
    machine = replace(MACHINE, ship_seconds=0.0)
    facts = facts_of(root, found, machine=machine)
    choice = Choice(splits=lambda _: SplitTable(part=np.arange(splits)))
    model = model_of(root, facts, BOTH, choice=choice)
    arranged, uses = [], []
    for cost in model.costs:
        precedence, order, done = find_precedence(cost.chain, facts, may_swap), [], 0
        while len(order) < cost.size:
            order.append(draw.choice(list(precedence.ready(done))))
            done |= 1 << order[-1]
        start, places = draw.randrange(2), [draw.randrange(2) for _ in order]
        uses.append(cost.evaluate(order, places, start))
        names = tuple(BOTH[place] for place in places)
        arranged.append(Arranged(cost.chain, tuple(order), names, BOTH[start]))
    there, _, refused = steps_of(root, facts, arranged)
    assert not refused
    moved = model_of(there, replace(facts, root=there), BOTH, choice=choice)
    assert total(path.use for path in as_lowered(moved)) == pytest.approx(total(uses))
    assert total(uses)[RESOURCES.index("process shipping")] * machine.ship_bytes == pytest.approx(
        shipped(there, replace(facts, root=there), choice)
    )


def test_a_graph_is_foreseen_in_the_places_of_its_nodes():
    root = cedar.from_items(ROWS).map(work, "a").node
    facts = facts_of(root, {0: figures(1e-9), 1: figures(1e-3, gil=1.0)})
    there = replace(root, place="processes", origin=root)
    alone = predict_lowered(root, facts, Budget(), BOTH, 4)
    assert alone.bottleneck == "GIL"
    assert predict_lowered(there, facts, Budget(), BOTH, 4).rows_per_second > 2 * alone.rows_per_second


def test_what_has_no_place_stays_here_where_all_else_runs_in_processes():
    root = cedar.from_items(ROWS).map(work, "a").batch(2).node
    found = search(root, facts_of(root, {0: figures(1e-9), 1: figures(1e-3, gil=1.0)}), Budget(), BOTH, 4)
    assert "processes" in {node.place for node in graph.walk(found.root)}
    assert found.executor == "threads", "batches are gathered on threads"


def test_the_loaders_own_work_is_part_of_a_prediction():
    root = cedar.from_items(ROWS).map(work, "a").node
    facts = facts_of(root, {0: figures(1e-9), 1: figures(1e-6)})
    assert facts.profile is not None
    slow = replace(facts, profile=replace(facts.profile, own=1e-4, around=2e-5))
    found = predict_lowered(root, slow, Budget(), ("threads",), 4)
    assert search(root, slow, Budget(), ("threads",), 4).seconds == pytest.approx(1 / found.rows_per_second)
    assert found.rows_per_second == pytest.approx(1 / 1.1e-4, rel=1e-3)  # half of what is around holds the GIL
    assert found.bottleneck == "GIL"


def test_the_bytes_of_a_budget_reach_what_a_loader_keeps():
    pipeline = cedar.from_items(ROWS).map(work, "a").cache().batch(2)
    made = planner_for(pipeline.node, Budget(cache="1MiB"), "auto", 2, None, exact=True)
    plan = made.best(profile(made.root, random.Random(1)))
    assert plan.cache_bytes == 1 << 20
    assert plan_from(text_of(plan), pipeline).cache_bytes == 1 << 20
    with Loader(pipeline.node, Options(plan=plan)) as loader:
        assert loader._epochs.job.store.memory._budget == 1 << 20
    assert Store.within(None).memory._budget > 1 << 20


def test_a_plan_with_no_number_of_bytes_is_refused():
    pipeline = cedar.from_items(ROWS).batch(2)
    text = text_of(replace(cedar.Plan.as_written(pipeline.node), cache_bytes=5))
    with pytest.raises(cedar.PlanError, match="cache_bytes -5"):
        plan_from(text.replace('"cache_bytes": 5', '"cache_bytes": -5'), pipeline)
