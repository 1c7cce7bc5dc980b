"""Functions that edit a plan's graph. Every new node refers to the node that it replaces."""

from __future__ import annotations

import dataclasses

from cedar.operators.base import Operator, Schema
from cedar.operators.expressions import ColumnEdit, Select
from cedar.plan import graph
from cedar.plan.graph import Node
from cedar.plan.steps.facts import Facts


def rebuilt(node: Node, inputs: tuple[Node, ...], facts: Facts, operator: Operator | None = None) -> Node:
    """Return a copy of ``node`` with other inputs or another operator; its ``origin`` stays the node as written."""
    origin = None if facts.ordinal(node) is None else node.logical
    return Node(operator or node.operator, inputs, node.site, origin, node.place)


def only(below: Node, names: tuple[str, ...]) -> Node:
    """Return a new node that selects these columns of ``below``."""
    return Node(Select(names), (below,))


def is_inserted(node: Node, facts: Facts) -> bool:
    """Return whether a node is a selection that the optimizer inserted."""
    return node.projection is not None and facts.ordinal(node) is None


def fitted(node: Node, inputs: tuple[Node, ...], facts: Facts) -> Node:
    """Return ``node`` with other inputs, without drops and renames of columns that the inputs no longer have.

    The function also adds the new node to ``facts``.
    """
    made = with_inputs(node, inputs, facts)
    if made is node and id(node) in facts.schemas:
        return node  # unchanged
    node = made
    below = facts.schemas[id(inputs[0])] if len(inputs) == 1 else None
    if below is not None and isinstance(node.operator, ColumnEdit):
        operator = node.operator.fitted(below)
        if operator is None:
            node = node.inputs[0]
        elif operator is not node.operator:
            node = rebuilt(node, node.inputs, facts, operator)
    facts.learn(node)
    return node


def tidy(root: Node, facts: Facts) -> Node:
    """Remove the optimizer's selections that select all columns or are followed by another such selection."""
    done: dict[int, Node] = {}
    for current in graph.walk(root):
        node = with_inputs(current, tuple(done[id(child)] for child in current.inputs), facts)
        if is_inserted(node, facts):
            below, schema = node.inputs[0], facts.schemas[id(current.inputs[0])]
            if schema is not None and tuple(schema) == node.projection:
                node = below
            elif is_inserted(below, facts):
                node = rebuilt(node, below.inputs, facts)
        done[id(current)] = node
    return done[id(root)]


def with_inputs(node: Node, inputs: tuple[Node, ...], facts: Facts) -> Node:
    """Return ``node`` with these inputs; the node itself if they are unchanged."""
    same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
    return node if same else rebuilt(node, inputs, facts)


# ---- the order of columns --------------------------------------------------------------------------------------------


def restore_order(root: Node, facts: Facts) -> Node:
    """Return the graph with columns in the order of the pipeline as written, wherever the order affects results.

    The order affects the output, functions of whole rows, expressions that select by type, and caches.
    ``facts`` must describe ``root``.
    """
    written = graph.schemas(facts.logical)
    done: dict[int, Node] = {}
    for node in graph.walk(root):
        inputs = [done[id(child)] for child in node.inputs]
        if facts.ordinal(node) is not None and len(node.logical.inputs) == len(inputs):
            for i, child in enumerate(node.inputs):
                if _sees_order(node, child, facts):
                    names = _wanted(facts.schemas[id(child)], written[id(node.logical.inputs[i])])
                    inputs[i] = only(inputs[i], names) if names else inputs[i]
        same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
        done[id(node)] = node if same else rebuilt(node, tuple(inputs), facts)
    names = _wanted(facts.schemas[id(root)], written[id(facts.logical)])
    if not names:
        return done[id(root)]
    top = done[id(root)]
    return only(top.inputs[0] if is_inserted(top, facts) else top, names)


def _sees_order(node: Node, child: Node, facts: Facts) -> bool:
    """Return whether column order must be restored before a node: the order affects it, or its schema is unknown."""
    lost = facts.schemas[id(node)] is None and facts.schemas[id(child)] is not None
    return lost or node.effects.reads is None or node.storage is not None


def _wanted(rewritten: Schema, written: Schema) -> tuple[str, ...]:
    """Return the names in the order as written if the rewritten order differs; otherwise ()."""
    if rewritten is None or written is None or list(rewritten) == list(written) or set(rewritten) != set(written):
        return ()
    return tuple(written)


# ---- tolerances ------------------------------------------------------------------------------------------------------


def tolerated(root: Node) -> dict[int, Operator]:
    """Return a plan's operators whose results may be inexact, by the id of the node of the pipeline as written."""
    nodes = graph.walk(root)
    return {id(n.logical): n.operator for n in nodes if n.link is not None and not n.link.exact}


def as_tolerated(root: Node, instead: dict[int, Operator]) -> Node:
    """Return the graph with the operators in ``instead``, by node id; a new node's ``origin`` is the replaced node."""
    done: dict[int, Node] = {}
    for node in graph.walk(root):
        inputs = tuple(done[id(child)] for child in node.inputs)
        operator = instead.get(id(node), node.operator)
        same = operator is node.operator and all(a is b for a, b in zip(inputs, node.inputs, strict=True))
        done[id(node)] = node if same else dataclasses.replace(node, operator=operator, inputs=inputs, origin=node)
    return done[id(root)]
