"""Step: one change of a plan's graph, and the conditions under which it is valid."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from cedar.plan.graph import Node
from cedar.plan.steps.facts import Facts, Refusal


class Step(ABC):
    """A change of the graph at one node and its inputs. Subclasses are frozen dataclasses of plain values.

    A step preserves the node's rows, with their keys, order and skipped rows, and all columns that later nodes read.
    ``check`` alone guarantees this; the docstring of each step explains why.
    """

    downward: ClassVar[bool] = False  # True if the step depends on which columns later nodes read

    @abstractmethod
    def check(self, graph: Node, facts: Facts) -> Refusal | None:
        """Return why the step may not be applied at this node; None if it may."""

    def fields(self) -> dict[str, Any]:
        """Return the step's values by name, for saved plans."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]

    @abstractmethod
    def apply(self, graph: Node, facts: Facts) -> Node:
        """Return the node that replaces this one. Call this method only if ``check`` returned None."""


def shared(below: Node, facts: Facts) -> str | None:
    """Return why a step may not change a node that has several consumers; None if it has only one consumer."""
    return f"others draw from {facts.label(below)}, too" if len(facts.consumers[id(below)]) > 1 else None


def run_below(top: Node, count: int) -> list[Node] | None:
    """Return the chain of ``count`` nodes that ends in ``top``, inputs first; None if there is no such chain."""
    run = [top]
    while len(run) < count:
        if len(run[-1].inputs) != 1:
            return None
        run.append(run[-1].inputs[0])
    return run[::-1]
