"""Predict the step times of a real run from measured instruction times, and measure the error of the prediction."""

from __future__ import annotations

from cedar.trainers.resilient.schedule import Durations, Schedule, Timeline, timeline


def predict(schedule: Schedule, durations: Durations, iterations: int = 1) -> Timeline:
    """Return when each step of a real run should end, given the measured time of each instruction."""
    return timeline(schedule, durations, iterations=iterations, transfer=durations.transfer)


def error(predicted: float, measured: float) -> float:
    """Return the absolute error of a prediction, as a fraction of the measured value.

    Examples:
        >>> error(0.95, 1.0)
        0.05
    """
    return round(abs(predicted - measured) / measured, 12)
