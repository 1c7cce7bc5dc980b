"""What a run asks of an optimizer: neither knows the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from cedar.plan.data import Plan
from cedar.profile import Profile


@dataclass(frozen=True)
class Difference:
    """Where a plan's output on the first rows is not that of the pipeline as written."""

    what: str  # such as "column 'x', row 3: 1.0 as written, 2.0 in the plan"


Check: TypeAlias = Callable[[Plan], "Difference | None"]
"""Runs a plan and the pipeline as written on the same first rows."""


class Planner(Protocol):
    """Chooses plans for one pipeline."""

    most_workers: int | None  # that a plan may have; None if their number is the user's

    def begin(self) -> Plan:
        """The plan to start with, from what operators declare: nothing is run or measured. Quick."""
        ...

    def admit(self, plan: Plan, check: Check) -> Plan:
        """The plan to start with, once it is compared: without the rule that makes a difference, where one does."""
        ...

    def candidates(self, profile: Profile) -> tuple[Plan, ...]:
        """The best plan for each kind of place, by what was measured, with what is expected of it; none is checked."""
        ...

    def checked(self, plan: Plan, profile: Profile, check: Check) -> Plan:
        """A candidate whose results hold on the first rows: without the rules that make a difference.

        Args:
            check: compares on the first rows; no plan that rewrites is taken without.
        """
        ...

    def foretell(self, plan: Plan, profile: Profile) -> Plan:
        """The same plan with what a new profile says of it; nothing is run."""
        ...
