"""What rules propose, and what they may know next to the node they look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from cedar.plan.graph import Node
from cedar.plan.steps.facts import CacheCosts, Factors, Facts, Refusal, read_from
from cedar.plan.steps.step import Step

__all__ = ["CacheCosts", "Change", "Factors", "Facts", "Outcome", "Refusal", "Rule", "Step", "downward", "read_from"]


@dataclass(frozen=True)
class Change:
    """A step that a rule proposes at the node that it looks at, and how to tell people.

    Args:
        step: checked before it is taken; why it is refused, ``explain()`` shows.
        what: the operator that moves or changes, as messages call it.
        how: such as "below map(f)".
    """

    step: Step
    what: str
    how: str = ""


class Rule(Protocol):
    """Proposes a step at a node, says why it does not, or None if it does not concern the node.

    A function of the rule's name will do. It is asked about inputs first; where it goes by what is read further up,
    ``downward`` it. A graph that was there before is not rebuilt, so rules that undo each other end.
    """

    __name__: str

    def __call__(self, node: Node, facts: Facts, /) -> Outcome: ...


Outcome: TypeAlias = "Step | Change | Refusal | None"


def downward(rule: Rule) -> Rule:
    """A rule that is asked about outputs first: ``facts.live`` tells what those above read, as they are by then."""
    vars(rule)["downward"] = True
    return rule
