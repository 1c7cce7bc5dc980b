"""scan_filter: a filter right above a source becomes part of reading it, so that most of it is not read at all."""

from __future__ import annotations

from cedar.datasets.base import Read
from cedar.optimizer.edit import rebuilt
from cedar.optimizer.facts import Change, Facts, Outcome, Refusal
from cedar.plan.graph import Node
from cedar.plan.scan import Scan


def scan_filter(node: Node, facts: Facts) -> Outcome:
    """Filters by expression, where the source can read some columns before others."""
    below = node.inputs[0] if node.inputs else None
    if below is None or node.operator.condition is None or not isinstance(below.operator, Read):
        return None
    if not callable(getattr(below.operator.source, "select", None)):
        return None
    reason = _reason(node, below, facts)
    if reason is not None:
        return Refusal(reason)
    before = below.operator if isinstance(below.operator, Scan) else Scan(below.operator.source)
    scan = Scan(before.source, before.columns, (*before.where, rebuilt(node, node.inputs, facts)))
    return Change(rebuilt(below, (), facts, scan), facts.label(node), f"into {facts.label(below)}")


def _reason(node: Node, below: Node, facts: Facts) -> str | None:
    if len(facts.consumers[id(below)]) > 1:
        return f"others draw from {facts.label(below)}, too"
    if node.effects.reads is None:
        return "which columns it reads depends on their types"
    if facts.skips(node) or facts.skips(below):
        return "rows may be skipped, and are counted where all are read"
    if facts.streams(below):
        return f"{facts.label(below)} has splits that can only be read from their beginning"
    return None
