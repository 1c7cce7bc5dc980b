"""The constants of the controller, each with its unit and the reason for its value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ControllerSettings:
    """Determines when the controller searches for plans, tries them and accepts them.

    Args:
        regret: share of the time so far, 0 to 1, that searches and trials of worse plans may cost. A run without a
            better plan then loses at most 3%, which cannot be distinguished from noise.
        least_gain: minimum seconds that a plan is expected to save; users do not notice less.
        candidates: number of plans from one search that are tried: one for each kind of executor.
        tasks: minimum number of tasks per worker, after its first, for a measurement of speed; one worker counts as
            two. One task more or less then changes the result only a little.
        steady: how many times as many tasks a measurement has whose result is not clear. Noise alone would otherwise
            seem to change the run's speed, or to make a plan better.
        growth: minimum length of a trial as a share of the time so far, 0 to 1. Longer trials in long runs can
            distinguish plans that differ by little.
        poll: seconds between two observations; it does not affect decisions.
        better: share of the time per row, 0 to 1, that a plan must save; smaller gains are within the regret.
        clear: a plan that takes at most this share of another's time per row, 0 to 1, is clearly faster, since noise
            cannot cause such a difference. It is tried before the running plan was measured for a whole trial.
        changed: factor by which the speed must rise or fall before the results of other plans count as outdated.
        memory: weight of a fresh trial's result relative to the cost model's estimate. It is halved when the run has
            taken twice as long, since other programs may have used the machine during the trial.
        max_loss: maximum loss of a trial, in trial lengths, and the largest slowdown recorded for a failed plan. Trials
            start cold, and a much slower plan need not be measured longer.
    """

    regret: float = 0.03
    least_gain: float = 0.25
    candidates: int = 3
    tasks: int = 3
    steady: int = 2
    growth: float = 0.01
    poll: float = 0.025
    better: float = 0.03
    clear: float = 0.5
    changed: float = 1.5
    memory: float = 8.0
    max_loss: float = 3.0
