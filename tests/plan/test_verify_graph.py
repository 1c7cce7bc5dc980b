"""Which work a plan does: an operator that is lost, or moved to where it counts other rows, is missed."""

from __future__ import annotations

import dataclasses

import pytest

import cedar
from cedar import col
from cedar.plan import graph
from cedar.plan.graph import Node
from cedar.plan.lower import Choice, lower
from cedar.plan.verify import verify
from tests.plan.toy_stages import all_kinds, numbers


def without(root: Node, gone: Node) -> Node:
    """The graph of a plan without one of its operators."""
    done: dict[int, Node] = {}
    for node in graph.walk(root):
        inputs = tuple(done[id(child)] for child in node.inputs)
        same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
        made = node if same else dataclasses.replace(node, inputs=inputs, origin=node.logical)
        done[id(node)] = inputs[0] if node is gone else made
    return done[id(root)]


def test_an_operator_that_a_rule_lost_is_missed():
    written = lower(all_kinds().node, Choice())
    for node in written.nodes:
        if len(node.inputs) == 1 and node.operator.name not in ("with_columns", "batch"):
            with pytest.raises(cedar.PlanError, match=r"leaves out|does not draw|other rows|draws from|reach"):
                verify(lower(without(written.root, node), Choice(), written.root), written)


def test_a_filter_that_a_rule_moved_below_a_take_is_refused():
    p = numbers().take(9).filter(col("x") > 3)
    lower_ = dataclasses.replace(p.node, inputs=p.node.inputs[0].inputs, origin=p.node)
    root = dataclasses.replace(p.node.inputs[0], inputs=(lower_,), origin=p.node.inputs[0])
    with pytest.raises(cedar.PlanError, match=r"changes how many rows reach .*take\(9\)") as caught:
        verify(lower(root, Choice(), p.node), lower(p.node, Choice()))
    assert caught.value.site is not None
