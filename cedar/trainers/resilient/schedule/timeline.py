"""Simulate a schedule: when each instruction starts and ends if it starts as soon as possible.

Times have the unit of the costs: by default, F, B_INPUT and B_WEIGHT cost 1 each; measured costs are in seconds.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from cedar.trainers.resilient.schedule.language import Instruction, Schedule, ScheduleError, Worker

Cost: TypeAlias = float | tuple[float, ...]


@dataclass(frozen=True)
class Costs:
    """The time of each kind of instruction: a number, or a tuple with a value for each stage.

    Args:
        forward: time of F.
        backward_input: time of B_INPUT.
        backward_weight: time of B_WEIGHT; a fused B takes both times.
        transfer: time from when a message has been computed until it can be received.
        reduce: time of ALL_REDUCE after the last of its workers has started it.
        step: time of STEP.

    Examples:
        >>> Costs(forward=(1.0, 2.0)).of(Worker(1, 0), Instruction("F", 0, 0))
        2.0
    """

    forward: Cost = 1
    backward_input: Cost = 1
    backward_weight: Cost = 1
    transfer: float = 0
    reduce: float = 0
    step: float = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if any(not 0 <= each < float("inf") for each in (value if isinstance(value, tuple) else (value,))):
                raise ScheduleError(f"the cost {name} is {value!r}", fix="give numbers of 0 or more")

    def check(self, stages: int) -> None:
        """Check that tuples have a value for each of ``stages``.

        Raises:
            ScheduleError: a tuple has another length.
        """
        for name, value in vars(self).items():
            if isinstance(value, tuple) and len(value) != stages:
                raise ScheduleError(
                    f"the cost {name} has {len(value)} values for {stages} stages", fix="give one value for each stage"
                )

    def stage(self, stage: int) -> tuple[float, float, float]:
        """Return the times of F, B_INPUT and B_WEIGHT at a stage."""
        forward, backward_input, backward_weight = (
            value[stage] if isinstance(value, tuple) else value
            for value in (self.forward, self.backward_input, self.backward_weight)
        )
        return forward, backward_input, backward_weight

    def slot(self, stages: int) -> float:
        """Return the time of F, B_INPUT and B_WEIGHT of one micro-batch at the slowest stage."""
        return max(sum(self.stage(stage)) for stage in range(stages))

    def of(self, worker: Worker, step: Instruction) -> float:
        """Return the time that the worker spends on an instruction; 0 for sends and receives."""
        forward, backward_input, backward_weight = self.stage(worker.stage)
        return {
            "F": forward, "B_INPUT": backward_input, "B_WEIGHT": backward_weight,
            "B": backward_input + backward_weight, "ALL_REDUCE": self.reduce, "STEP": self.step,
        }.get(step.kind, 0)  # fmt: skip


def group_of(schedule: Schedule, stage: int, kind: str) -> tuple[str, int]:
    """Return a key for the workers that wait for each other: all for STEP, else those of the stage or tied stages."""
    if kind == "STEP":
        return ("STEP", -1)
    return (kind, min(schedule.tied) if stage in schedule.tied else stage)


class Span(NamedTuple):
    """When a worker ran an instruction."""

    iteration: int
    worker: Worker
    step: Instruction
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """The times at which the instructions of a schedule end."""

    ends: tuple[float, ...]  # for each iteration, when its last instruction ended
    stages: tuple[tuple[float, ...], ...]  # for each iteration, when each stage's last STEP ended
    spans: tuple[Span, ...] = ()  # each instruction's start and end, if requested

    @property
    def makespan(self) -> float:
        """Return the time of the first iteration."""
        return self.ends[0]

    @property
    def period(self) -> float:
        """Return the mean time per iteration, over all iterations after the first."""
        return (self.ends[-1] - self.ends[0]) / (len(self.ends) - 1) if len(self.ends) > 1 else self.ends[0]


def timeline(
    schedule: Schedule, costs: Costs | Callable[[Worker, Instruction], float] | None = None, *, iterations: int = 1,
    transfer: float | Callable[[], float] | None = None, spans: bool = False,
) -> Timeline:  # fmt: skip
    """Simulate a schedule, starting each instruction as soon as possible.

    Args:
        schedule: the schedule to repeat; in staggered mode, stages do not wait for each other between iterations.
        costs: the time of each kind of instruction, or a function that returns the time of any instruction, including
            messages; default: 1 each for F, B_INPUT and B_WEIGHT.
        iterations: number of steps in a row.
        transfer: transfer time of a message, or a function that returns it for the next message. By default that of
            ``costs``, or 0 if ``costs`` is a function.
        spans: keep the start and end of every instruction.

    Raises:
        ScheduleError: workers wait for each other forever.

    Examples:
        >>> lone = (Instruction("F", 0, 0), Instruction("B", 0, 0), Instruction("ALL_REDUCE"), Instruction("STEP"))
        >>> timeline(Schedule(1, 1, 1, {Worker(0, 0): lone}), iterations=3).ends
        (3, 6, 9)
    """
    costs = costs or Costs()
    if isinstance(costs, Costs):
        costs.check(schedule.stages)
    duration_of = costs.of if isinstance(costs, Costs) else costs
    travel = transfer if transfer is not None else costs.transfer if isinstance(costs, Costs) else 0
    travels = travel if callable(travel) else lambda: travel
    run = _Run(schedule, duration_of, travels, iterations, spans)
    run.simulate()
    ends = [[0.0] * schedule.stages for _ in range(iterations)]
    for worker, closed in run.closed.items():
        for iteration, end in enumerate(closed):
            ends[iteration][worker.stage] = max(ends[iteration][worker.stage], end)
    return Timeline(tuple(map(max, ends)), tuple(map(tuple, ends)), tuple(sorted(run.spans, key=_by_time)))


def _by_time(span: Span) -> tuple[float, Worker, float]:
    return span.start, span.worker, span.end


class _Run:
    """One simulation. It runs each worker until the worker must wait, and resumes it after the awaited event."""

    def __init__(
        self, schedule: Schedule, duration_of: Callable[[Worker, Instruction], float], travel: Callable[[], float],
        iterations: int, keep: bool,
    ) -> None:  # fmt: skip
        self.schedule, self.duration_of, self.travel = schedule, duration_of, travel
        self.iterations, self.keep = iterations, keep
        self.closed: dict[Worker, list[float]] = {worker: [] for worker in schedule.work}
        self.spans: list[Span] = []
        self.clock: dict[Worker, float] = dict.fromkeys(schedule.work, 0)
        self.messages: dict[Hashable, deque[float]] = defaultdict(deque)
        self.waiting: dict[Hashable, Worker] = {}
        self.arrivals: dict[Hashable, list[tuple[Worker, float]]] = defaultdict(list)
        self.start: dict[Worker, float] = {}
        self.runnable = deque(schedule.work)
        self.sizes: dict[tuple[str, int], int] = defaultdict(int)  # number of workers in each group
        for worker in schedule.work:
            if worker.stage not in schedule.serving:
                self.sizes[group_of(schedule, worker.stage, "ALL_REDUCE")] += 1
                self.sizes[group_of(schedule, worker.stage, "STEP")] += 1

    def simulate(self) -> None:
        at = dict.fromkeys(self.schedule.work, 0)
        while self.runnable:
            worker = self.runnable.popleft()
            at[worker] = self.advance(worker, at[worker])
        stuck = [worker for worker, closed in self.closed.items() if len(closed) < self.iterations]
        if stuck:
            work = self.schedule.work
            reported = ", ".join(f"{w} at {work[w][at[w]]} (instruction {at[w]})" for w in stuck[:4])
            more = f" and {len(stuck) - 4} more" if len(stuck) > 4 else ""
            raise ScheduleError(f"invalid schedule: {reported}{more} wait forever", fix="make it with the planner")

    def advance(self, worker: Worker, at: int) -> int:
        """Run a worker until it waits or has done all iterations; return the position in its list."""
        instructions, clock, stage = self.schedule.work[worker], self.clock[worker], worker.stage
        size, travel = len(instructions), self.travel
        while len(self.closed[worker]) < self.iterations:
            if at == size:  # the iteration ends, even if the list has no STEP
                self.closed[worker].append(clock)
                at = 0
                continue
            step = instructions[at]
            kind = step.kind
            start = clock
            if kind[0] == "R":
                key: Hashable = (stage - 1 if kind == "RECV_F" else stage + 1, step.peer, stage, worker.replica)
                if not self.messages[key]:
                    self.waiting[key] = worker
                    break
                start = max(clock, self.messages[key].popleft())
            elif kind == "ALL_REDUCE" or (kind == "STEP" and self.schedule.mode == "sync"):
                start_time = self.arrive(worker, clock, kind)
                if start_time is None:
                    break
                start = start_time
            clock = start + self.duration_of(worker, step)
            if kind[0] == "S" and kind != "STEP":
                key = (stage, worker.replica, stage + 1 if kind == "SEND_F" else stage - 1, step.peer)
                self.messages[key].append(clock + travel())
                if key in self.waiting:
                    self.runnable.append(self.waiting.pop(key))
            if self.keep:
                self.spans.append(Span(len(self.closed[worker]), worker, step, start, clock))
            at += 1
        self.clock[worker] = clock
        return at

    def arrive(self, worker: Worker, clock: float, kind: str) -> float | None:
        """Return the time at which the group's last worker arrived, or None if some workers have not arrived."""
        if worker in self.start:
            return self.start.pop(worker)
        key = group_of(self.schedule, worker.stage, kind)
        arrivals = self.arrivals[key]
        arrivals.append((worker, clock))
        if len(arrivals) < self.sizes[key]:
            return None
        start_time = max(came for _, came in arrivals)
        for other, _ in arrivals:
            if other != worker:
                self.start[other] = start_time
                self.runnable.append(other)
        del self.arrivals[key]
        return start_time
