"""Step: one change of a plan's graph, and the conditions under which it is valid."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from cedar.plan.graph import Node
from cedar.plan.steps.facts import Facts, Refusal


class Step(ABC):
    """A change of the graph at one node, including the nodes below it. A frozen dataclass of plain values.

    A step preserves the node's rows, with their keys, order and skipped rows, and all columns that are read above.
    ``check`` alone guarantees that; the docstring of each step explains why.
    """

    downward: ClassVar[bool] = False  # True if it depends on which columns are read above

    @abstractmethod
    def check(self, graph: Node, facts: Facts) -> Refusal | None:
        """Return why the step may not be applied at this node; None if it may."""

    def fields(self) -> dict[str, Any]:
        """Return the step's values by name, for saved plans."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]

    @abstractmethod
    def apply(self, graph: Node, facts: Facts) -> Node:
        """Return the node that replaces this one. Call it only if ``check`` returned None."""


def shared(below: Node, facts: Facts) -> str | None:
    """Return why a node may not change for only one of its consumers; None if it has a single one."""
    return f"others draw from {facts.label(below)}, too" if len(facts.consumers[id(below)]) > 1 else None


def run_below(top: Node, count: int) -> list[Node] | None:
    """Return ``count`` nodes in a line, lowest first, ending in ``top``; None if there are fewer."""
    run = [top]
    while len(run) < count:
        if len(run[-1].inputs) != 1:
            return None
        run.append(run[-1].inputs[0])
    return run[::-1]
