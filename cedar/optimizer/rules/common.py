"""common: the same operator twice on the same rows is computed once."""

from __future__ import annotations

from cedar.datasets.base import Read
from cedar.optimizer.facts import Change, Facts, Outcome, Refusal, read_from
from cedar.plan.graph import Node
from cedar.plan.steps.commute import is_row_operator
from cedar.plan.steps.single import Share, equal_before


def common(node: Node, facts: Facts) -> Outcome:
    """The earlier of two equal row operators on one and the same input.

    Sources and stream operators stay apart, since the state of each is its own; so do two random operators, which draw
    differently, unless they are one object.
    """
    if isinstance(node.operator, Read):
        return _read_twice(node, facts)
    if not is_row_operator(node) or node.operator.storage is not None:
        return None
    if len(facts.consumers[id(node.inputs[0])]) < 2:
        return _computed_before(node, facts)
    other = equal_before(node, facts)
    return None if other is None else Change(Share(), facts.label(node), f"is {facts.label(other)}, computed once")


def _read_twice(node: Node, facts: Facts) -> Refusal | None:
    """Two sources number their rows apart: with one of them gone, the other's rows are drawn for and sorted as its."""
    assert isinstance(node.operator, Read)
    for other in facts.readers[read_from(node)]:
        if other is node:
            break
        assert isinstance(other.operator, Read)
        if node.operator.source == other.operator.source:
            why = "its rows have their own keys, which decide draws and order: use one pipeline in both places"
            return Refusal(f"it reads what {facts.label(other)} reads, but {why}", facts.label(node))
    return None


def _computed_before(node: Node, facts: Facts) -> Refusal | None:
    """The same function of the same columns, into others: two results, each of which may be changed in place."""
    wanted, current = None if node.effects.random else node.operator.computes(), node.inputs[0]
    while wanted is not None and (before := current.operator.computes()) is not None:
        writes = current.effects.writes
        if not writes or writes & (node.effects.reads or frozenset()):
            break
        if before == wanted:
            return Refusal(f"it computes what {facts.label(current)} does: with_columns() gives a result a second name")
        current = current.inputs[0]
    return None
