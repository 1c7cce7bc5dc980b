"""A rule: two scalings of one column are one."""

from __future__ import annotations

from cedar.optimizer.rewrite import Change, Outcome
from cedar.plan.graph import Node
from cedar.plan.steps import Facts, Refusal, Replace

from .operators import Scale


def one_scale(node: Node, facts: Facts) -> Outcome:
    """Where both factors are powers of two, so that no bit of a result changes."""
    upper, lower = node.operator, node.inputs[0].operator if node.inputs else None
    if not isinstance(upper, Scale) or not isinstance(lower, Scale) or upper.into is not None:
        return None
    if lower.written != upper.column or len(facts.consumers[id(node.inputs[0])]) > 1:
        return None
    if upper.factor.hex().partition("p")[0] != "0x1.0000000000000":
        return Refusal("its factor is not a power of two, so results would differ in their last bit")
    both = Scale(lower.column, lower.factor * upper.factor, lower.into)
    return Change(Replace(both, 2), facts.label(node), f"into {facts.label(node.inputs[0])}")
