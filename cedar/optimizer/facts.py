"""The changes that rules propose, and the facts that rules may use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from cedar.plan.graph import Node
from cedar.plan.steps.facts import CacheCosts, Factors, Facts, Refusal, read_from
from cedar.plan.steps.step import Step

__all__ = ["CacheCosts", "Change", "Factors", "Facts", "Outcome", "Refusal", "Rule", "Step", "downward", "read_from"]


@dataclass(frozen=True)
class Change:
    """A step that a rule proposes at a node, with a description for users.

    Args:
        step: the step, which is checked before it is applied; ``explain()`` shows why a step was refused.
        what: label of the operator that moves or changes, for messages.
        how: a description such as "below map(f)".
    """

    step: Step
    what: str
    how: str = ""


class Rule(Protocol):
    """A function of a node and the facts. It returns a step, a Refusal with a reason, or None if it does not apply.

    The function's ``__name__`` is the rule's name. cedar calls a rule for inputs before outputs, or in reverse order if
    it is marked with ``downward``. A rewrite never returns to an earlier graph, so it ends if rules undo each other.
    """

    __name__: str

    def __call__(self, node: Node, facts: Facts, /) -> Outcome: ...


Outcome: TypeAlias = "Step | Change | Refusal | None"


def downward(rule: Rule) -> Rule:
    """Mark a rule to be called for outputs first, so that ``facts.live`` reflects earlier changes to nodes above."""
    vars(rule)["downward"] = True
    return rule
