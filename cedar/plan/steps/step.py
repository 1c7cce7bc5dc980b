"""Step: one change of a plan's graph, the conditions under which it is valid, and functions that edit graphs.

Every new node refers to the node that it replaces.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from cedar.operators.base import Operator
from cedar.operators.expressions import ColumnEdit, Select
from cedar.plan import graph
from cedar.plan.graph import Node
from cedar.plan.steps.facts import Facts, Refusal


class Step(ABC):
    """A change of the graph at one node and its inputs. Subclasses are frozen dataclasses of plain values.

    A step preserves the node's rows, with their keys, order and skipped rows, and all columns that later nodes read.
    ``check`` alone guarantees this; the docstring of each step explains why.
    """

    downward: ClassVar[bool] = False  # True if the step depends on which columns later nodes read

    @abstractmethod
    def check(self, graph: Node, facts: Facts) -> Refusal | None:
        """Return why the step may not be applied at this node; None if it may."""

    def fields(self) -> dict[str, Any]:
        """Return the step's values by name, for saved plans."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]

    @abstractmethod
    def apply(self, graph: Node, facts: Facts) -> Node:
        """Return the node that replaces this one. Call this method only if ``check`` returned None."""


def shared(below: Node, facts: Facts) -> str | None:
    """Return why a step may not change a node that has several consumers; None if it has only one consumer."""
    return f"others draw from {facts.label(below)}, too" if len(facts.consumers[id(below)]) > 1 else None


def run_below(top: Node, count: int) -> list[Node] | None:
    """Return the chain of ``count`` nodes that ends in ``top``, inputs first; None if there is no such chain."""
    run = [top]
    while len(run) < count:
        if len(run[-1].inputs) != 1:
            return None
        run.append(run[-1].inputs[0])
    return run[::-1]


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


def with_inputs(node: Node, inputs: tuple[Node, ...], facts: Facts) -> Node:
    """Return ``node`` with these inputs; the node itself if they are unchanged."""
    same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
    return node if same else rebuilt(node, inputs, facts)


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
