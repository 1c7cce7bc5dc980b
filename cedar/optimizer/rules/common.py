"""common: computes equal operators on the same input only once."""

from __future__ import annotations

from collections.abc import Hashable

from cedar.datasets.base import Read
from cedar.operators.base import Mergeable
from cedar.optimizer.facts import Change, Facts, Outcome, Refusal, read_from
from cedar.plan.graph import Node
from cedar.plan.steps.commute import is_row_operator
from cedar.plan.steps.single import Share, equal_before


def common(node: Node, facts: Facts) -> Outcome:
    """Replace a row operator by an earlier equal one with the same input.

    The rule does not merge sources or stream operators, since each has its own state. It merges random operators only
    if they are the same object, since two random operators draw different numbers.
    """
    if isinstance(node.operator, Read):
        return _refuse_sources(node, facts)
    if not is_row_operator(node) or node.storage is not None:
        return None
    if len(facts.consumers[id(node.inputs[0])]) < 2:
        return _refuse_copies(node, facts)
    other = equal_before(node, facts)
    return None if other is None else Change(Share(), facts.label(node), f"is {facts.label(other)}, computed once")


def _refuse_sources(node: Node, facts: Facts) -> Refusal | None:
    """Refuse to merge two equal sources: their rows have different keys, which determine random draws and order."""
    assert isinstance(node.operator, Read)
    for other in facts.readers[read_from(node)]:
        if other is node:
            break
        assert isinstance(other.operator, Read)
        if node.operator.source == other.operator.source:
            why = "its rows have their own keys, which decide draws and order: use one pipeline in both places"
            return Refusal(f"it reads what {facts.label(other)} reads, but {why}", facts.label(node))
    return None


def _refuse_copies(node: Node, facts: Facts) -> Refusal | None:
    """Refuse to merge equal functions that write different columns, since each result may later be changed in place."""
    wanted, current = None if node.effects.random else _computes(node), node.inputs[0]
    while wanted is not None and (before := _computes(current)) is not None:
        writes = current.effects.writes
        if not writes or writes & (node.effects.reads or frozenset()):
            break
        if before == wanted:
            return Refusal(f"it computes what {facts.label(current)} does: with_columns() gives a result a second name")
        current = current.inputs[0]
    return None


def _computes(node: Node) -> Hashable | None:
    return node.operator.computes() if isinstance(node.operator, Mergeable) else None
