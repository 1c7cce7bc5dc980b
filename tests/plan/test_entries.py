"""Nodes of a plan as plain data, and back: what a plan may change comes back, and nothing else is said."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import cedar
from cedar import col
from cedar.operators.cache import Cache
from cedar.plan.data import Plan
from cedar.plan.graph import Node, walk
from cedar.plan.saved import text_of
from cedar.plan.scan import Scan
from tests.plan.toy_plans import decode, loaded, rewritten, rows, shape, stacked


def unchecked(plan):
    """The graph as read, without what makes a plan legal."""
    from cedar.plan.entries import graph_of

    return graph_of(json.loads(text_of(plan))["nodes"], list(walk(plan.logical)))


def test_every_kind_of_node_comes_back():
    plan = rewritten()
    back = replace(plan, root=unchecked(plan))
    assert shape(back) == shape(plan)


def test_a_shared_node_stays_one():
    shared = rows().map(decode, "x", dtype=int)
    pipeline = cedar.zip(shared.select("x"), shared.select("y"))
    back = loaded(Plan.as_written(pipeline.node))
    assert back.root is pipeline.node
    root = pipeline.node
    nodes = list(walk(root))
    base = Node(Scan(nodes[0].operator.source, ("x", "y"), ()), origin=nodes[0])
    mapped = Node(nodes[1].operator, (base,), origin=nodes[1], place="processes")
    arms = [Node(n.operator, (mapped,), origin=n) for n in root.inputs]
    plan = Plan(root, Node(root.operator, tuple(arms), origin=root))
    back = loaded(plan)
    assert shape(back) == shape(plan)
    assert back.root.inputs[0].inputs[0] is back.root.inputs[1].inputs[0]


def test_a_filter_may_be_on_both_inputs_of_a_concat():
    pipeline = cedar.concat(rows(3), rows(4)).filter(col("x") > 1).batch(2)
    nodes = list(walk(pipeline.node))
    arms = [Node(nodes[3].operator, (n,), origin=nodes[3]) for n in nodes[:2]]
    joined = Node(nodes[2].operator, tuple(arms), origin=nodes[2])
    plan = Plan(pipeline.node, Node(nodes[4].operator, (joined,), origin=nodes[4]))
    assert shape(loaded(plan)) == shape(plan)


def test_two_takes_may_be_one():
    pipeline = rows().take(10).map(decode, "x", dtype=int).take(5).batch(5)
    nodes = list(walk(pipeline.node))
    plan = stacked(pipeline.node, 0, (1, replace(nodes[1].operator, n=5)), 2, 4)
    assert shape(loaded(plan)) == shape(plan)
    with pytest.raises(cedar.PlanError, match=r"operator 1, take\(10\), takes 3 in the plan, not the least of 10, 5"):
        loaded(stacked(pipeline.node, 0, (1, replace(nodes[1].operator, n=3)), 2, 4))


def test_what_is_computed_twice_may_be_computed_once():
    base = rows()
    pipeline = cedar.zip(base.map(decode, "x", into="a", dtype=int).select("a"),
                         base.map(decode, "x", into="a", dtype=int).select("x"))  # fmt: skip
    nodes = list(walk(pipeline.node))
    assert [n.operator.name for n in nodes] == ["read", "map", "select", "map", "select", "zip"]
    mapped = Node(nodes[1].operator, (nodes[0],), origin=nodes[1])
    arms = [Node(nodes[i].operator, (mapped,), origin=nodes[i]) for i in (2, 4)]
    plan = Plan(pipeline.node, Node(nodes[5].operator, tuple(arms), origin=nodes[5]))
    assert shape(loaded(plan)) == shape(plan)


def test_an_operator_that_no_rule_makes_cannot_be_saved():
    pipeline = rows().batch(4)
    nodes = list(walk(pipeline.node))
    with pytest.raises(cedar.PlanError, match="has another size than in the pipeline"):
        text_of(stacked(pipeline.node, 0, (1, replace(nodes[1].operator, size=8))))
    with pytest.raises(cedar.PlanError, match="belongs to no operator"):
        text_of(stacked(pipeline.node, 0, nodes[1].operator))
    with pytest.raises(cedar.PlanError, match="of another kind"):
        text_of(stacked(pipeline.node, 0, (1, Cache())))
