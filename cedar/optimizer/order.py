"""Order of columns: moved operators add columns at other places, and somebody may see where."""

from __future__ import annotations

from cedar.operators.base import Schema
from cedar.optimizer.edit import is_inserted, only, rebuilt
from cedar.optimizer.facts import Facts
from cedar.plan import graph
from cedar.plan.graph import Node


def restore_order(root: Node, facts: Facts) -> Node:
    """The graph with its columns in the order of the pipeline as written, wherever that shows.

    It shows at the end, to a function that sees whole rows, to an expression that selects by type, and in a cache.
    ``facts`` are those of ``root``.
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
    """Also where names get lost, so that none can be put right further up."""
    lost = facts.schemas[id(node)] is None and facts.schemas[id(child)] is not None
    return lost or node.effects.reads is None or node.operator.storage is not None


def _wanted(found: Schema, written: Schema) -> tuple[str, ...]:
    """The names in the order as written, where they come in another one."""
    if found is None or written is None or list(found) == list(written) or set(found) != set(written):
        return ()
    return tuple(written)
