"""scan_filter: merges a filter right above a source into the scan, which then reads few of the dropped rows."""

from __future__ import annotations

from cedar.datasets.base import Read
from cedar.optimizer.facts import Change, Facts, Outcome
from cedar.plan.graph import Node
from cedar.plan.steps.scans import PushFilter


def scan_filter(node: Node, facts: Facts) -> Outcome:
    """Move expression filters into sources that can read the filters' columns before other columns."""
    below = node.inputs[0] if node.inputs else None
    if below is None or node.condition is None or not isinstance(below.operator, Read):
        return None
    if not below.operator.source.selects:
        return None
    return Change(PushFilter(), facts.label(node), f"into {facts.label(below)}")
