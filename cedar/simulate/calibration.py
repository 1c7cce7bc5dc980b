"""From what a real executor took to what the simulator says it should take: the check of the one by the other."""

from __future__ import annotations

from cedar.trainers.resilient.schedule import Durations, Schedule, Timeline, timeline


def predict(schedule: Schedule, durations: Durations, iterations: int = 1) -> Timeline:
    """When each step of a real run should end, given what its instructions take."""
    return timeline(schedule, durations, iterations=iterations, transfer=durations.transfer)


def error(predicted: float, measured: float) -> float:
    """How far a prediction is off, as a share of what was measured.

    Examples:
        >>> error(0.95, 1.0)
        0.05
    """
    return round(abs(predicted - measured) / measured, 12)
