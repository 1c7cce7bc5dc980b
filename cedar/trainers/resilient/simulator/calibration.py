"""From what a real executor took to what the simulator says it should take: the check of the one by the other."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from cedar.trainers.resilient.schedule import Instruction, Kind, Schedule, Timeline, Worker, timeline


@dataclass(frozen=True)
class Durations:
    """Seconds of instructions, for ``timeline``: it can be called with a worker and an instruction.

    Args:
        seconds: of each kind at each stage. A RECV, an ALL_REDUCE or a STEP counts without the time spent on waiting.
        transfer: seconds from the end of a SEND until the message can be received.
    """

    seconds: dict[tuple[Kind, int], float]
    transfer: float = 0.0

    @classmethod
    def of(cls, records: Iterable[tuple[Worker, Instruction, float]], transfer: float = 0.0) -> Durations:
        """The medians of what an executor measured.

        Example:
            >>> work = [(Worker(0, 0), Instruction("F", 0, m), 0.1 * m) for m in (1, 2, 6)]
            >>> Durations.of(work)(Worker(0, 1), Instruction("F", 0, 0))
            0.2
        """
        found: dict[tuple[Kind, int], list[float]] = defaultdict(list)
        for worker, step, seconds in records:
            found[step.kind, worker.stage].append(seconds)
        return cls({key: statistics.median(values) for key, values in found.items()}, transfer)

    def __call__(self, worker: Worker, step: Instruction) -> float:
        return self.seconds.get((step.kind, worker.stage), 0.0)


def predict(schedule: Schedule, durations: Durations, iterations: int = 1) -> Timeline:
    """When each step of a real run should end, given what its instructions take."""
    return timeline(schedule, durations, iterations=iterations, transfer=durations.transfer)


def error(predicted: float, measured: float) -> float:
    """How far a prediction is off, as a share of what was measured.

    Example:
        >>> error(0.95, 1.0)
        0.05
    """
    return round(abs(predicted - measured) / measured, 12)
