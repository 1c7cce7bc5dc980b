"""The constants of the controller, each with its unit and the reason for its value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ControllerSettings:
    """Decides when the controller searches for plans, tries them and keeps them.

    Args:
        regret: share of the time so far, 0 to 1, that searches and trials of worse plans may cost. A run that gains
            nothing then loses at most 3%, which cannot be distinguished from noise.
        least_gain: seconds that a plan must be expected to save; users do not notice less.
        rare: share of the time so far, 0 to 1, that must pass between two searches, so that a change of costs in the
            middle of a run is noticed before much more than that is lost.
        candidates: number of plans from one search that are tried: one for each kind of place.
        tasks: minimum number of tasks of each worker, after its first, for a measurement of speed, so that one task
            more or less only changes part of it.
        growth: minimum share of the time so far, 0 to 1, that a trial lasts: a long run can afford to distinguish plans
            that differ by little.
        poll: seconds between two observations; it does not affect decisions.
        better: share of the time per row, 0 to 1, that a plan must save; smaller gains are within the regret.
        clear: maximum share of the time per row, 0 to 1, that a plan is expected to take if it is tried before the
            running plan was measured for a whole trial: noise cannot cause such a difference.
        changed: factor by which the speed must change, up or down, to make the results of other plans outdated.
        memory: weight of a fresh trial's result relative to the cost model's estimate. It is half as much once the run
            has taken twice as long, since other work may have used the machine during the trial.
        max_loss: maximum loss of a trial, in trial lengths, and the largest slowdown recorded for a failed plan: it
            starts cold, and a plan that is much slower need not be measured longer.
    """

    regret: float = 0.03
    least_gain: float = 0.25
    rare: float = 0.1
    candidates: int = 3
    tasks: int = 2
    growth: float = 0.01
    poll: float = 0.025
    better: float = 0.03
    clear: float = 0.5
    changed: float = 1.5
    memory: float = 8.0
    max_loss: float = 3.0
