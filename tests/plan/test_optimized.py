"""Whatever the rules and the search make of a pipeline can be saved and comes back."""

import random
from dataclasses import replace

import pyarrow as pa
import pytest

import cedar
from cedar import col
from cedar.operators.base import RowOperator
from cedar.optimizer.rewrite import rewrite
from cedar.optimizer.rules import MOVES, TRIMS
from cedar.optimizer.search import predict_lowered, search
from cedar.plan.data import Budget, Plan
from cedar.plan.graph import walk
from cedar.plan.saved import plan_from, text_of
from cedar.plan.steps.step import facts_of
from cedar.profile import Machine, OperatorProfile, Profile
from tests import toy_pipelines
from tests.plan.toy_plans import decode, shape


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(25))
def test_plans_of_rules_and_search_come_back(seed):
    pipeline = toy_pipelines.build(random.Random(seed)).pipeline
    check_rules(pipeline)


TABLE = pa.table({name: pa.array(range(9), pa.int64()) for name in ("x", "y", "z")})


def table():
    return cedar.from_arrow(TABLE)


def twice(p):
    """The same work on one shared pipeline."""
    return cedar.zip(p.with_columns(a=col("x") + 1).select("a"), p.with_columns(a=col("x") + 1).select("x"))


@pytest.mark.parametrize(
    "make",
    [
        lambda: table().map(decode, "x", dtype=int).shuffle().filter(col("y") > 3).select("x").batch(2),
        lambda: cedar.concat(table(), table()).shuffle().filter(col("y") > 3).batch(2),
        lambda: table().with_columns(a=col("x") + 1, b=col("y") + 1).drop("z").select("a").shuffle().batch(2),
        lambda: table().rename({"x": "a", "y": "b"}).map(decode, "a", dtype=int).select("a").take(3),
        lambda: twice(table()),
        lambda: table().map(decode, "x", dtype=int).take(5).with_columns(a=col("x") + 1).select("y").batch(2),
        lambda: table().with_columns(a=col("x") + 1).filter(col("y") > 1).filter(col("z") < 8).select("a", "z"),
    ],
)
def test_plans_of_rules_and_search_come_back_with_all_that_they_changed(make):
    assert check_rules(make())


def check_rules(pipeline):
    """Whether rules and search changed anything, with figures drawn by lot; the plan comes back if they did."""
    draw = random.Random(1)
    figures = {
        i: OperatorProfile("", 3, 1000, draw.random() * 1e-4, draw.random() * 1e-4, draw.choice([1, 0.5]),
                           draw.random() * 99, draw.random() * 99, gil=draw.random())
        for i, _ in enumerate(walk(pipeline.node))
    }  # fmt: skip
    profile = Profile("", figures, Machine(4, 1 << 34), 1000, 1.0)
    skips = lambda node: isinstance(node.operator, RowOperator) and node.operator.on_error is not None
    facts = facts_of(pipeline.node, pipeline.node, skips, profile)
    moved = rewrite(facts, MOVES)
    found = search(moved.root, facts.at(moved.root), Budget(), ("threads", "processes"), 4)
    trimmed = rewrite(facts.at(found.root), TRIMS)
    root, decisions = trimmed.root, (*moved.decisions, *found.decisions, *trimmed.decisions)
    sweeps = (*moved.sweeps, *found.sweeps, *trimmed.sweeps)
    expected = predict_lowered(root, facts.at(root), Budget(), ("threads",), 4)
    plan = Plan(pipeline.node, root, decisions, expected, found.method, found.executor, found.workers, profile)
    plan = replace(plan, sweeps=sweeps)
    back = plan_from(text_of(plan), pipeline)
    assert shape(back) == shape(plan)
    assert back.decisions[: len(decisions)] == decisions
    assert (back.executor, back.workers) == (plan.executor, plan.workers)
    return root is not pipeline.node
