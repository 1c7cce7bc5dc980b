"""The input of the planner: the grid, the dead workers, memory limits and instruction costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

from cedar.trainers.resilient.schedule import MODES, Costs, Mode, ScheduleError, Worker, grid

Memory: TypeAlias = Literal["1f1b", "stage 1f1b"] | int | tuple[int, ...] | None


@dataclass(frozen=True)
class Problem:
    """A step to plan.

    Args:
        stages: number of stages in a pipeline.
        replicas: number of pipelines.
        micro_batches: micro-batches per pipeline and step.
        dead: the dead workers.
        memory: how many activations a worker may keep: a number, or one for each stage; ``"1f1b"``: as many at every
            stage as 1F1B needs at its first stage; ``"stage 1f1b"``: as many as 1F1B needs at this stage; None: no
            limit.
        mode: ``sync``: all stages step together; ``staggered``: each stage steps when it is ready.
        costs: instruction times; default: 1 each for F, B_INPUT and B_WEIGHT.
        tied: stages that share weights, and so step together.

    Raises:
        ScheduleError: a stage has no live worker, or a number is out of range.

    Examples:
        >>> Problem(4, 3, 6, frozenset({Worker(2, 1)}), memory="1f1b").caps
        (4, 4, 4, 4)
        >>> Problem(2, 2, 2, frozenset({Worker(1, 0), Worker(1, 1)}))
        Traceback (most recent call last):
        ...
        cedar.trainers.resilient.schedule.language.ScheduleError: stage 1 has no live worker: its weights are lost
          next       go back to the last checkpoint
    """

    stages: int
    replicas: int
    micro_batches: int
    dead: frozenset[Worker] = frozenset()
    memory: Memory = None
    mode: Mode = "staggered"
    costs: Costs = field(default_factory=Costs)
    tied: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("stages", "replicas", "micro_batches"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise ScheduleError(f"{name} is {getattr(self, name)!r}", fix="give an integer of 1 or more")
        if self.mode not in MODES:
            raise ScheduleError(f"the mode is {self.mode!r}", fix=f"give one of {', '.join(MODES)}")
        if isinstance(self.memory, str) and self.memory not in {"1f1b", "stage 1f1b"}:
            raise ScheduleError(f"the memory is {self.memory!r}", fix="give a number, '1f1b', 'stage 1f1b' or None")
        each = self.memory if isinstance(self.memory, tuple) else (self.memory,) * self.stages
        if len(each) != self.stages or any(isinstance(one, int) and one < 1 for one in each):
            raise ScheduleError(
                f"the memory is {self.memory} for {self.stages} stages",
                fix="allow a worker of each stage at least one activation",
            )
        self.costs.check(self.stages)
        object.__setattr__(self, "dead", frozenset(Worker(*worker) for worker in self.dead))
        if unknown := self.dead - set(grid(self.stages, self.replicas)):
            raise ScheduleError(
                f"the dead worker {min(unknown)} is not in a grid of {self.stages} x {self.replicas}",
                fix="name workers as (stage, replica), from 0",
            )
        for stage in range(self.stages):
            if not self.alive(stage):
                raise ScheduleError(
                    f"stage {stage} has no live worker: its weights are lost", fix="go back to the last checkpoint"
                )

    def alive(self, stage: int) -> list[int]:
        """Return the replicas whose worker of this stage is alive."""
        return [replica for replica in range(self.replicas) if (stage, replica) not in self.dead]

    @property
    def caps(self) -> tuple[int | None, ...]:
        """Return for each stage how many activations a worker may keep."""
        if self.memory == "1f1b":
            return (min(self.stages, self.micro_batches),) * self.stages
        if self.memory == "stage 1f1b":
            return tuple(min(self.stages - stage, self.micro_batches) for stage in range(self.stages))
        return self.memory if isinstance(self.memory, tuple) else (self.memory,) * self.stages

    @cached_property
    def routes(self) -> list[list[int]]:
        """Return for each stage and micro-batch (replica * micro_batches + number) the replica of its worker.

        The micro-batches of dead workers are distributed to live ones in turn, so that loads differ by at most one.
        Each stage begins this distribution with a different worker.
        """
        by_stage = []
        for stage in range(self.stages):
            alive = self.alive(stage)
            routes, turn = [], stage
            for replica in range(self.replicas):
                if (stage, replica) in self.dead:
                    routes += [alive[(turn + i) % len(alive)] for i in range(self.micro_batches)]
                    turn += self.micro_batches
                else:
                    routes += [replica] * self.micro_batches
            by_stage.append(routes)
        return by_stage

    @property
    def load(self) -> list[int]:
        """Return for each stage how many micro-batches its busiest worker has."""
        return [max(map(routes.count, set(routes))) for routes in self.routes]

    @cached_property
    def bound(self) -> float:
        """Return a lower bound of the step time of any plan with these routes.

        The busiest worker of each stage must do all its work and its optimizer step. Until its first gradient arrives
        from later stages, it can only run F, as often as memory allows. While it waits for its last gradient, it can
        only run backwards of the other micro-batches in memory. In sync mode, it also waits for its first activation.
        """
        each = [self.costs.stage(stage) for stage in range(self.stages)]
        bounds, first_arrival = [], 0.0
        for stage, (load, cap) in enumerate(zip(self.load, self.caps, strict=True)):
            forward, backward_input, backward_weight = each[stage]
            kept = load if cap is None else min(load, cap)
            round_trip = sum(f + b + 2 * self.costs.transfer for f, b, _ in each[stage + 1 :])
            first = max(0.0, forward + round_trip - kept * forward)
            last = max(0.0, round_trip - (kept - 1) * (backward_input + backward_weight))
            # these two waits cannot overlap if memory must be freed before the last micro-batch starts
            idle = first + last if kept < load else max(first, last)
            stays = (sum(each[stage]) + round_trip) * load / kept
            busy = max(sum(each[stage]) * load + idle, stays)
            bounds.append(busy + self.costs.reduce + self.costs.step + (first_arrival if self.mode == "sync" else 0))
            first_arrival += forward + self.costs.transfer
        return max(bounds)
