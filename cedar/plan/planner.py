"""The interface between a run and the optimizer, which do not import each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from cedar.plan.data import Plan
from cedar.profile import Profile


@dataclass(frozen=True)
class Difference:
    """Where a plan's output on the first rows differs from the pipeline as written."""

    what: str  # such as "column 'x', row 3: 1.0 as written, 2.0 in the plan"


Check: TypeAlias = Callable[[Plan], "Difference | None"]
"""Runs a plan and the pipeline as written on the same first rows."""


class Planner(Protocol):
    """Chooses plans for one pipeline."""

    most_workers: int | None  # the maximum number of workers in a plan; None if the user set the number of workers

    @property
    def limits(self) -> tuple[object, ...]:
        """What determines the plans besides the pipeline; values whose ``repr`` is the same in every process."""
        ...

    def begin(self) -> Plan:
        """Return an initial plan that is based only on operators' declared effects, without running anything."""
        ...

    def admit(self, plan: Plan, check: Check) -> Plan:
        """Check the initial plan, and return it without any rule that changes its results."""
        ...

    def candidates(self, profile: Profile) -> tuple[Plan, ...]:
        """Return the plan with the best predicted throughput for each kind of executor; ``check`` has not run yet."""
        ...

    def checked(self, plan: Plan, profile: Profile, check: Check) -> Plan:
        """Return a candidate without the rules that change results on the first rows.

        Args:
            check: compares results on the first rows; every plan with rewrites must pass it.
        """
        ...

    def with_prediction(self, plan: Plan, profile: Profile) -> Plan:
        """Return the same plan with a prediction from a new profile, without running the plan."""
        ...
