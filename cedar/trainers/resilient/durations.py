"""What the instructions of a run really take: told once by each worker, for the simulator and for later plans."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from cedar.trainers.resilient.control import protocol as keys
from cedar.trainers.resilient.control.board import Board
from cedar.trainers.resilient.executor import Executor
from cedar.trainers.resilient.executor.run import Done
from cedar.trainers.resilient.schedule import CLOSING, RECEIVING, SENDING, Instruction, Kind, Schedule, Worker
from cedar.trainers.resilient.schedule.flow import group_of
from cedar.trainers.resilient.simulator.calibration import Durations

WARM, LOOK = 2, 5  # steps that are left out, and steps that are looked at


class Told:
    """One worker's measurements, over some steps of one generation; a generation that ends sooner does not count."""

    def __init__(self) -> None:
        self._executor: Executor | None = None
        self._steps, self._done = 0, False

    def begin(self, executor: Executor) -> None:
        """A generation begins."""
        self._executor, self._steps = executor, 0

    def tell(self, board: Board, me: Worker) -> None:
        """Call after each step."""
        if self._done or self._executor is None:
            return
        self._steps += 1
        if self._steps == WARM:
            self._executor.records = []
        elif self._steps == WARM + LOOK:
            board.put(keys.DURATIONS(me), [_plain(done) for done in self._executor.records or []])
            self._executor.records, self._done = None, True


def _plain(done: Done) -> list[Any]:
    return [done.step, list(done.instruction), done.began, done.ended]


def measured(board: Board, members: Collection[Worker], schedule: Schedule) -> Durations | None:
    """What instructions take, by kind and stage; None until all members have told.

    Args:
        board: shared by all.
        members: who is alive.
        schedule: any of the run's: it says who meets.
    """
    plain = board.take_all([keys.DURATIONS(worker) for worker in members])
    if plain is None:
        return None
    told = {
        worker: [Done(step, Instruction(*done), began, ended) for step, done, began, ended in one]
        for worker, one in zip(members, plain, strict=True)
    }
    work: dict[tuple[Kind, int], list[float]] = defaultdict(list)
    for worker, one in told.items():
        for done in one:
            if done.instruction.kind not in CLOSING | RECEIVING:
                work[done.instruction.kind, worker.stage].append(done.ended - done.began)
    seconds = {key: statistics.median(each) for key, each in work.items()}
    return Durations(seconds | _meetings(told, schedule), _travel(told))


def _meetings(told: Mapping[Worker, Iterable[Done]], schedule: Schedule) -> dict[tuple[Kind, int], float]:
    """Where workers meet, the one that came last has waited for nobody: of each step its time counts."""
    least: dict[Any, dict[int, float]] = defaultdict(dict)
    groups: dict[tuple[Kind, int], Any] = {}
    for worker, one in told.items():
        for step, (kind, *_), began, ended in one:
            if kind in CLOSING:
                alone = kind == "STEP" and schedule.mode != "sync"
                group = (kind, worker.stage) if alone else group_of(schedule, worker.stage, kind)
                groups[kind, worker.stage] = group
                least[group][step] = min(ended - began, least[group].get(step, float("inf")))
    return {key: statistics.median(least[group].values()) for key, group in groups.items()}


def _travel(told: Mapping[Worker, Iterable[Done]]) -> float:
    """From the end of a SEND until a receiver that waits already has the message.

    Messages go up and down, so where the clocks of two machines differ, the mean of both does not.
    """
    sent = {
        (step, done.kind[5:], done.other(worker), done.replica, done.micro_batch): ended
        for worker, one in told.items() for step, done, _, ended in one if done.kind in SENDING
    }  # fmt: skip
    found: dict[str, list[float]] = defaultdict(list)
    for worker, one in told.items():
        for step, done, began, ended in one:
            gone = sent.get((step, done.kind[5:], worker, done.replica, done.micro_batch))
            if done.kind in RECEIVING and gone is not None and began < gone:
                found[done.kind].append(ended - gone)
    return max(0.0, statistics.mean(map(statistics.median, found.values()))) if found else 0.0
