"""Improve plans between failures: measure instruction times, replan, and move workers if that saves time."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from cedar.trainers.resilient.control import protocol as keys
from cedar.trainers.resilient.control.board import Board
from cedar.trainers.resilient.control.lead import Coordinator
from cedar.trainers.resilient.executor import Executor
from cedar.trainers.resilient.executor.run import TimedInstruction
from cedar.trainers.resilient.planning import Planning
from cedar.trainers.resilient.schedule import (
    CLOSING,
    RECEIVING,
    SENDING,
    Durations,
    Instruction,
    Kind,
    Schedule,
    Worker,
    timeline,
)
from cedar.trainers.resilient.schedule.timeline import group_of

WARMUP_STEPS, MEASURED_STEPS = 2, 5  # steps left out as warm-up, and steps that are measured


class WorkerDurations:
    """Measures one worker's instruction times over some steps; starts over if the generation ends too early."""

    def __init__(self) -> None:
        self._executor: Executor | None = None
        self._steps, self._done = 0, False

    def begin(self, executor: Executor) -> None:
        """Start to measure in a new generation."""
        self._executor, self._steps = executor, 0

    def after_step(self, board: Board, me: Worker) -> None:
        """Count a step, and report the measurements once enough steps are done. Call after each step."""
        if self._done or self._executor is None:
            return
        self._steps += 1
        if self._steps == WARMUP_STEPS:
            self._executor.records = []
        elif self._steps == WARMUP_STEPS + MEASURED_STEPS:
            board.put(keys.DURATIONS(me), [_to_plain(done) for done in self._executor.records or []])
            self._executor.records, self._done = None, True


def _to_plain(done: TimedInstruction) -> list[Any]:
    return [done.step, list(done.instruction), done.began, done.ended]


def measure_durations(board: Board, members: Collection[Worker], schedule: Schedule) -> Durations | None:
    """Return the median time of instructions by kind and stage; None until all members have reported. ``schedule``: any
    schedule of the run; determines which workers wait for each other in collective instructions.
    """
    plain = board.get_all([keys.DURATIONS(worker) for worker in members])
    if plain is None:
        return None
    reported = {
        worker: [TimedInstruction(step, Instruction(*done), began, ended) for step, done, began, ended in one]
        for worker, one in zip(members, plain, strict=True)
    }
    work: dict[tuple[Kind, int], list[float]] = defaultdict(list)
    for worker, one in reported.items():
        for done in one:
            if done.instruction.kind not in CLOSING | RECEIVING:
                work[done.instruction.kind, worker.stage].append(done.ended - done.began)
    seconds = {key: statistics.median(each) for key, each in work.items()}
    return Durations(seconds | _collective_times(reported, schedule), _transfer_time(reported))


def _collective_times(
    reported: Mapping[Worker, Iterable[TimedInstruction]], schedule: Schedule
) -> dict[tuple[Kind, int], float]:
    """Return the times of collective instructions, without waits: the median over steps of the minimum over workers."""
    shortest: dict[Any, dict[int, float]] = defaultdict(dict)
    groups: dict[tuple[Kind, int], Any] = {}
    for worker, one in reported.items():
        for step, (kind, *_), began, ended in one:
            if kind in CLOSING:
                stage_only = kind == "STEP" and schedule.mode != "sync"
                group = (kind, worker.stage) if stage_only else group_of(schedule, worker.stage, kind)
                groups[kind, worker.stage] = group
                shortest[group][step] = min(ended - began, shortest[group].get(step, float("inf")))
    return {key: statistics.median(shortest[group].values()) for key, group in groups.items()}


def _transfer_time(reported: Mapping[Worker, Iterable[TimedInstruction]]) -> float:
    """Return the seconds from the end of a SEND until a receiver that is already waiting has the message.

    Averaging over both directions cancels the difference between the clocks of two machines.
    """
    sent = {
        (step, done.kind[5:], done.other(worker), done.replica, done.micro_batch): ended
        for worker, one in reported.items() for step, done, _, ended in one if done.kind in SENDING
    }  # fmt: skip
    delays: dict[str, list[float]] = defaultdict(list)
    for worker, one in reported.items():
        for step, done, began, ended in one:
            sent_at = sent.get((step, done.kind[5:], worker, done.replica, done.micro_batch))
            if done.kind in RECEIVING and sent_at is not None and began < sent_at:
                delays[done.kind].append(ended - sent_at)
    return max(0.0, statistics.mean(map(statistics.median, delays.values()))) if delays else 0.0


_DEFAULT_PAUSE = 0.5  # seconds that a change at a step boundary costs, until one has been measured


class Manager:
    """Checks a run regularly, in the coordinator's process, to improve its plans. ``moves``: move workers to other
    stages if that saves time.
    """

    def __init__(
        self, moves: bool, board: Board, coordinator: Coordinator, planning: Planning, connect: Callable[[], Any]
    ) -> None:
        self.moves, self.board, self.coordinator = moves, board, coordinator
        self.planning, self.connect = planning, connect
        self._generation = self._first_index = self._steps_seen = 0
        self._step_times: list[float] = []

    def check(self, steps: Sequence[tuple[int, float, float]]) -> None:
        """Check the run; call often. ``steps``: the finished steps, with the times at which they finished."""
        if self.coordinator.generation != self._generation:
            self._generation, self._first_index = self.coordinator.generation, len(steps)
        if len(steps) == self._steps_seen or not self._generation:
            return
        self._steps_seen = len(steps)
        if self.planning.durations is None and len(steps) > WARMUP_STEPS + MEASURED_STEPS:
            durations = measure_durations(self.board, self.coordinator.members, self.planning.plans[0].schedule)
            if durations is not None:
                recent = [when for _, when, _ in steps][max(self._first_index, len(steps) - MEASURED_STEPS - 1) :]
                self._step_times = [b - a for a, b in pairwise(recent)]
                self.planning.learn(durations, self.connect)
        measured = self.planning.durations is not None
        if measured and not self.coordinator.plans and (self.board.get(keys.PLANS()) or 0) > 0:
            self.coordinator.plans = 1  # the next generation will use the plans from measured times
        if len(steps) > self._first_index:  # the generation has finished its first step
            self.planning.prepare(self._generation, self.coordinator.plans, self.connect)
        if self.moves and not self.coordinator.leaving and not self.coordinator.lost:
            self._move_workers(steps)

    def _move_workers(self, steps: Sequence[tuple[int, float, float]]) -> None:
        since, intervals = len(steps) - self._first_index - 1, [b - a for (_, a, _), (_, b, _) in pairwise(steps)]
        epoch = self.board.epoch(self._generation)
        change = self.planning.find_change(self.board, epoch, since, intervals, self._pause_seconds())
        for move in change.moves if change is not None else ():
            if move.worker in self.coordinator.members:
                self.coordinator.move(move.worker, move.role)

    def _pause_seconds(self) -> float:
        """Estimate the seconds that a move costs: twice the median time from deciding on a generation until it
        computes, because a move also transfers state.
        """
        pauses = []
        for event in self.coordinator.events:
            for worker in self.coordinator.members:
                times = self.board.get(keys.RECOVERY(event.generation, worker))
                if times is not None and event.what != "start":
                    pauses.append(times["redo"] - event.decided)
        return 2 * statistics.median(pauses) if pauses else _DEFAULT_PAUSE

    def describe(self) -> dict[str, Any]:
        """Return the entries ``plans``, ``step`` and ``durations`` of the run's ``Record``."""
        planning = self.planning
        figures: dict[str, Any] = {"plans": {"failures": planning.failures, "seconds": planning.seconds}}
        if planning.durations is not None and self._step_times:
            took, schedule = planning.durations, planning.plans[0].schedule
            simulated = timeline(schedule, took, iterations=6, transfer=took.transfer).period
            figures["step"] = {"simulated": simulated, "measured": statistics.median(self._step_times)}
            each = {f"{kind} {stage}": s for (kind, stage), s in planning.durations.seconds.items()}
            figures["durations"] = each | {"transfer": planning.durations.transfer}
        return figures
