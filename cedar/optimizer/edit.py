"""Edit a plan's graph: every node keeps the name of the node whose work it does."""

from __future__ import annotations

from cedar.operators.base import Operator
from cedar.operators.expressions import Select
from cedar.optimizer.facts import Facts
from cedar.plan import graph
from cedar.plan.graph import Node


def rebuilt(node: Node, inputs: tuple[Node, ...], facts: Facts, operator: Operator | None = None) -> Node:
    """``node`` on other inputs, perhaps with less to do, in the name of the same node of the pipeline as written."""
    origin = None if facts.ordinal(node) is None else node.logical
    return Node(operator or node.operator, inputs, node.site, origin, node.place)


def only(below: Node, names: tuple[str, ...]) -> Node:
    """These columns of a node, put in by the optimizer."""
    return Node(Select(names), (below,))


def is_inserted(node: Node, facts: Facts) -> bool:
    """True for a selection that the optimizer put in."""
    return node.operator.projection is not None and facts.ordinal(node) is None


def fitted(node: Node, inputs: tuple[Node, ...], facts: Facts) -> Node:
    """``node`` on other inputs, without drops and renames of columns that are not there any more, as nobody reads them.

    The facts of it are known then.
    """
    made = with_inputs(node, inputs, facts)
    if made is node and id(node) in facts.schemas:
        return node  # as it was
    node = made
    below = facts.schemas[id(inputs[0])] if len(inputs) == 1 else None
    if below is not None:
        operator = node.operator.fitted(below)
        if operator is None:
            node = node.inputs[0]
        elif operator is not node.operator:
            node = rebuilt(node, node.inputs, facts, operator)
    facts.learn(node)
    return node


def tidy(root: Node, facts: Facts) -> Node:
    """Without selections of the optimizer that select what is there, or what one right above them selects again."""
    done: dict[int, Node] = {}
    for current in graph.walk(root):
        node = with_inputs(current, tuple(done[id(child)] for child in current.inputs), facts)
        if is_inserted(node, facts):
            below, held = node.inputs[0], facts.schemas[id(current.inputs[0])]
            if held is not None and tuple(held) == node.operator.projection:
                node = below
            elif is_inserted(below, facts):
                node = rebuilt(node, below.inputs, facts)
        done[id(current)] = node
    return done[id(root)]


def with_inputs(node: Node, inputs: tuple[Node, ...], facts: Facts) -> Node:
    """``node`` on these inputs; itself where they are its own."""
    same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
    return node if same else rebuilt(node, inputs, facts)
