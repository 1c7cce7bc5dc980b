"""limit: moves take() down, so that rows that it drops are not computed.

Right above a source, ``take`` also limits read-ahead: cedar reads no splits after the last row taken.
"""

from __future__ import annotations

from cedar.optimizer.facts import Change, Facts, Outcome, Refusal
from cedar.plan.graph import Node
from cedar.plan.steps.commute import is_row_operator
from cedar.plan.steps.cross import Cross, under_limit
from cedar.plan.steps.edit import is_inserted
from cedar.plan.steps.step import shared


def limit(node: Node, facts: Facts) -> Outcome:
    """Move ``take`` below operators that keep the number of rows."""
    if node.row_use.rows != "first":
        return None
    passed: list[Node] = []
    current, refused = node.inputs[0], None
    while is_row_operator(current) and current.storage is None:
        refused = shared(current, facts) or under_limit(current, facts)
        if refused is not None:
            break
        passed.append(current)
        current = current.inputs[0]
    if refused is None and current.row_use.rows == "first":
        refused = f"{facts.label(current)} counts rows, too, and states hold how far each of the two is"
    while passed and is_inserted(passed[-1], facts):
        passed.pop()  # an inserted selection computes nothing, so passing it gains nothing
    if not passed:
        return None if refused is None else Refusal(refused)
    return Change(Cross("up", len(passed)), facts.label(node), _format_passed(passed, facts))


def _format_passed(passed: list[Node], facts: Facts) -> str:
    return f"below {', '.join(facts.label(n) for n in passed if not is_inserted(n, facts))}"
