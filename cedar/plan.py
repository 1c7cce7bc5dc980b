"""Plan: the stages that a pipeline runs in. Plain data, so it can be printed, compared and saved."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
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
class Plan:
    """Stages in the order in which rows pass them, and what a user should know about them."""

    stages: list[Stage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        """Text that diffs well."""
        return json.dumps(asdict(self), indent=1)
