"""Stages: what a compiled plan runs in, for people to read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Stage:
    """A run of operators that work together.

    Args:
        kind: "read" takes splits, "task" takes rows or batches, "stream" runs in the coordinator.
        operators: their labels, in order.
        detail: how the stage cuts its work.
    """

    kind: Literal["read", "task", "stream"]
    operators: tuple[str, ...]
    detail: str = ""

    def __str__(self) -> str:
        work = " -> ".join(self.operators) or "gather"
        return f"{self.kind:<6}  {work}" + (f"   [{self.detail}]" if self.detail else "")


@dataclass
class Stages:
    """Stages in the order in which rows pass them, and what a user should know about them."""

    stages: list[Stage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
