"""What rules propose, and the facts that they may use."""

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
        step: checked before it is applied; ``explain()`` shows why it was refused.
        what: the operator that moves or changes, as messages name it.
        how: a description such as "below map(f)".
    """

    step: Step
    what: str
    how: str = ""


class Rule(Protocol):
    """Proposes a step at a node, a Refusal with the reason against it, or None if the rule does not apply.

    A function is a rule; its ``__name__`` names it. cedar calls it for inputs before outputs, or in reverse order if
    marked with ``downward``. cedar never returns to an earlier graph, so rules that undo each other terminate.
    """

    __name__: str

    def __call__(self, node: Node, facts: Facts, /) -> Outcome: ...


Outcome: TypeAlias = "Step | Change | Refusal | None"


def downward(rule: Rule) -> Rule:
    """Mark a rule to be called for outputs first, so that ``facts.live`` reflects what the nodes above now read."""
    vars(rule)["downward"] = True
    return rule
