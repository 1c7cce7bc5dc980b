"""limit: what take leaves out is not computed first.

Right above a source it ends the look-ahead: splits behind the last row that is taken are not read.
"""

from __future__ import annotations

from cedar.optimizer.commute import first, is_row_operator, may_skip, pads
from cedar.optimizer.edit import is_inserted, rebuilt
from cedar.optimizer.facts import Change, Facts, Outcome, Refusal
from cedar.plan.graph import Node


def limit(node: Node, facts: Facts) -> Outcome:
    """``take`` goes below operators that give a row for each row."""
    if first(node) is None:
        return None
    passed: list[Node] = []
    current, refused = node.inputs[0], None
    while is_row_operator(current) and current.operator.storage is None:
        refused = _reason(current, facts)
        if refused is not None:
            break
        passed.append(current)
        current = current.inputs[0]
    if refused is None and first(current) is not None:
        refused = f"{facts.label(current)} counts rows, too, and states hold how far each of the two is"
    while passed and is_inserted(passed[-1], facts):
        passed.pop()  # a selection of the optimizer's computes nothing: below it, nothing is gained
    if not passed:
        return None if refused is None else Refusal(refused)
    top = rebuilt(node, passed[-1].inputs, facts)
    for below in reversed(passed):
        top = rebuilt(below, (top,), facts)
    return Change(top, facts.label(node), _told(passed, facts))


def _told(passed: list[Node], facts: Facts) -> str:
    return f"below {', '.join(facts.label(n) for n in passed if not is_inserted(n, facts))}"


def _reason(below: Node, facts: Facts) -> str | None:
    label = facts.label(below)
    if pads(below):
        return f"{label} would see the padding of ranks that have fewer batches"
    if len(facts.consumers[id(below)]) > 1:
        return f"others draw from {label}, too"
    if below.effects.rows != "1:1":
        return f"{label} changes the number of rows"
    return f"{label} may skip rows" if may_skip(below, facts) else None
