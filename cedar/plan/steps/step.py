"""Step: one change of a plan's graph, with what must hold for it."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from cedar.plan.graph import Node
from cedar.plan.steps.facts import Facts, Refusal


class Step(ABC):
    """Changes the graph at one node, which stands for all below it. A frozen dataclass of plain values.

    A step gives the rows of the node as they were, each with its key and in its order, skipped rows included, and the
    columns that are read further up. That it does follows from ``check`` alone; its docstring has the argument.
    """

    downward: ClassVar[bool] = False  # by what is read further up, so that outputs come first

    @abstractmethod
    def check(self, graph: Node, facts: Facts) -> Refusal | None:
        """Why it may not be taken at this node; None if it may."""

    def fields(self) -> dict[str, Any]:
        """What a saved plan says of it: plain values by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]

    @abstractmethod
    def apply(self, graph: Node, facts: Facts) -> Node:
        """The node instead of this one, once ``check`` has nothing against it."""


def shared(below: Node, facts: Facts) -> str | None:
    """Why a node may not change for the one above alone."""
    return f"others draw from {facts.label(below)}, too" if len(facts.consumers[id(below)]) > 1 else None


def run_below(top: Node, count: int) -> list[Node] | None:
    """So many nodes on a line, lowest first, ``top`` last; None if there are fewer."""
    run = [top]
    while len(run) < count:
        if len(run[-1].inputs) != 1:
            return None
        run.append(run[-1].inputs[0])
    return run[::-1]
