"""Measured instruction times of a run, for planning and for simulation."""

from __future__ import annotations

from dataclasses import dataclass

from cedar.trainers.resilient.schedule.language import Instruction, Kind, Worker
from cedar.trainers.resilient.schedule.timeline import Costs

_COLLECTIVES: tuple[Kind, Kind] = ("ALL_REDUCE", "STEP")


@dataclass(frozen=True)
class Durations:
    """Instruction times in seconds; callable with a worker and an instruction, as ``timeline`` expects."""

    # seconds by kind and stage, without the time spent waiting for other workers
    seconds: dict[tuple[Kind, int], float]
    transfer: float = 0.0  # seconds from the end of a SEND until the message can be received

    def costs(self, stages: int) -> Costs:
        """Return costs for plans: seconds of F, B_INPUT and B_WEIGHT at each stage, rounded to 1/20 of the largest.

        Rounding removes noise, which would make plans differ for no reason.

        Examples:
            >>> Durations({("F", 0): 0.101, ("B_INPUT", 0): 0.1, ("B_WEIGHT", 0): 0.052}).costs(1).stage(0)
            (0.101, 0.101, 0.0505)
        """
        kinds: tuple[Kind, Kind, Kind] = ("F", "B_INPUT", "B_WEIGHT")
        each = [
            [
                self.seconds.get((kind, s), 0.0 if kind == "F" else self.seconds.get(("B", s), 0.0) / 2)
                for s in range(stages)
            ]
            for kind in kinds  # for a fused backward, half of its time
        ]
        grain = max(map(max, each)) / 20
        forward, backward_input, backward_weight = (
            tuple(grain * round(seconds / grain) if grain else 0.0 for seconds in one) for one in each
        )
        reduce, step = (
            max((s for (kind, _), s in self.seconds.items() if kind == name), default=0.0) for name in _COLLECTIVES
        )
        transfer = grain * round(self.transfer / grain) if grain else self.transfer
        return Costs(forward, backward_input, backward_weight, transfer, reduce, step)

    def __call__(self, worker: Worker, step: Instruction) -> float:
        return self.seconds.get((step.kind, worker.stage), 0.0)
