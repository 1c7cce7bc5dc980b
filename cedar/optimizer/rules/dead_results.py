"""dead_results: skips results of expressions that no operator reads."""

from __future__ import annotations

from cedar.operators.base import RowOperator
from cedar.operators.expressions import SeparateResults
from cedar.optimizer.facts import Change, Facts, Outcome, Refusal, downward
from cedar.plan.graph import Node
from cedar.plan.steps.columns import DropResults


@downward
def dead_results(node: Node, facts: Facts) -> Outcome:
    """Skip unused expressions that cannot fail. Functions are always called, since they may have side effects."""
    operator, live = node.operator, facts.live.get(id(node))
    if live is None:
        return None
    if not isinstance(operator, SeparateResults):
        writes, alone = node.effects.writes, isinstance(operator, RowOperator) and node.effects.rows != "1:n"
        if alone and writes and not live & writes and operator.calls_functions:
            return Refusal("no operator reads its result, but the function may have side effects")
        return None
    names, types = operator.results, facts.schemas[id(node.inputs[0])]
    dead = [number for number, name in enumerate(names) if name not in {None, *live}]
    gone = [number for number in dead if operator.never_fails(number, types)]
    fewer = operator.without(gone) if gone else operator
    reported = ", ".join(str(names[number]) for number in gone or dead)
    if not gone or (fewer is not None and not fewer.results):
        return Refusal(f"nothing reads {reported}, but they may fail on some row") if dead and not gone else None
    return Change(DropResults(tuple(gone)), facts.label(node), f"{reported} not computed, as nothing reads it")
