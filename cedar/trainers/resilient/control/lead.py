"""The coordinator: decides which workers are in the run, from the reports of all supervisors and workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from cedar.core.errors import CedarError
from cedar.trainers.resilient.control import protocol as keys
from cedar.trainers.resilient.control.board import Board, Epoch, Mailbox
from cedar.trainers.resilient.schedule import Worker, grid

_IN_A_ROW = 5  # max restores or connection losses without a new step in between, before the run stops


@dataclass
class Event:
    """A change of the run's workers, such as a failure or a join; times are ``time.time()``."""

    what: str
    worker: Worker | None
    generation: int
    detected: float
    decided: float
    why: str = ""


@dataclass
class Machine:
    """A supervisor: its heartbeat count, the time at which this count last changed, and the workers that it runs."""

    beats: int
    since: float
    roles: set[Worker] = field(default_factory=set)


class Coordinator:
    """Decides which workers are in the run, and begins generations.

    Args:
        machines: number of supervisors to wait for at the start.
        latest: returns the path of the newest checkpoint; empty if there is none.
        initial_checkpoint: the checkpoint that every worker loads at the start; empty: none.
        silence: seconds without a heartbeat after which a supervisor and its workers are considered dead.
        can_replay_alone: whether stages that have lost all their workers can redo their steps from others' logs.
    """

    def __init__(
        self, board: Board, stages: int, replicas: int, *, machines: int = 1, latest: Callable[[], str] = lambda: "",
        initial_checkpoint: str = "", silence: float = 10.0,
        can_replay_alone: Callable[[set[int]], bool] = lambda _: False,
    ) -> None:  # fmt: skip
        self.board, self.stages, self.replicas, self.expected = board, stages, replicas, machines
        self.latest, self.initial_checkpoint = latest, initial_checkpoint
        self.silence, self.can_replay_alone = silence, can_replay_alone
        self.machines: dict[str, Machine] = {}
        self.members: set[Worker] = set()
        self.ready: set[Worker] = set()
        self.events: list[Event] = []
        self.ended: dict[Worker, Mapping[str, Any]] = {}
        self.generation = self.line = self.plans = 0
        self.lost: set[int] = set()  # stages that must still redo steps from logged messages
        self.leaving: dict[Worker, Worker] = {}  # maps a destination to the worker that will move there
        self._mailbox = Mailbox(board, silence)
        self._repeats: dict[str, tuple[int, int]] = {}  # by problem: how often it occurred in a row at one step
        self._replayed: set[Worker] = set()
        self._all_restore = False
        self._paused = False
        self.places_assigned = False
        self._restoring = False
        self._failures: list[tuple[Worker | None, float, str]] = []
        self._errors: dict[Worker, str] = {}
        self._suspected_loss: tuple[float, float, str] | None = None
        self._step = 0  # most steps that the run has done
        self._last_why = ""  # why the last worker ended since then
        self._start_failed = False

    @property
    def places(self) -> list[Worker]:
        return list(grid(self.stages, self.replicas))

    @property
    def over(self) -> bool:
        """Whether every worker has finished the run."""
        return bool(self.members) and self.members <= set(self.ended)

    def tick(self, now: float, step: int = 0) -> None:
        """Read new reports, and begin a generation if needed. ``now``: time of a monotonic clock; ``step``: number of
        steps that the run has done.
        """
        if step > self._step:
            self._step, self._last_why = step, ""
        for report in self._mailbox.read_new(now):
            self._handle_report(report, now)
        self.listen(now)
        if self._suspected_loss is not None and now - self._suspected_loss[0] > self.silence / 4 and not self._failures:
            self._failures.append((None, *self._suspected_loss[1:]))  # no worker has died: only a connection broke
        if self.generation == 0:
            self._start()
        elif self._failures:
            self._handle_failures(step)
        elif self._restoring:
            self._restore(step)
        elif self.ready or self._paused:
            self._join()

    # ---- reports -----------------------------------------------------------------------------------------------------

    def _handle_report(self, report: Mapping[str, Any], now: float) -> None:
        kind = report["what"]
        worker = Worker(*report["worker"]) if "worker" in report else None
        if kind == "machine":
            self.machines[report["machine"]] = Machine(-1, now)
            if self.generation or self.places_assigned:
                self.fill(report["machine"])
        elif kind == "ready" and worker is not None:
            self.ready.add(worker)
        elif kind == "gone" and worker is not None:
            error = self._errors.pop(worker, "")
            self._handle_gone(
                worker, report["machine"], report["time"], report["why"] + (f": {error}" if error else "")
            )
        elif kind == "error" and worker is not None:
            self._errors[worker] = report["error"]
        elif kind == "wrong":
            raise CedarError(
                report["problem"], done="the run was stopped; checkpoints were not changed", fix=report["fix"]
            )
        elif kind == "ended" and worker is not None:
            self.ended[worker] = report
        elif kind == "replayed" and report["generation"] == self.generation and worker is not None:
            self._replayed.add(worker)
            self.lost = {s for s in self.lost if not {w for w in self.members if w.stage == s} <= self._replayed}
        elif kind == "unlogged" and report["generation"] == self.generation:
            self._restoring = self._all_restore = True
        elif kind == "lost" and report["generation"] == self.generation and self._suspected_loss is None:
            if self._restoring:
                return  # a new generation will begin anyway
            self._suspected_loss = now, time.time(), report["error"]

    def listen(self, now: float) -> None:
        """Drop supervisors that have been silent for too long, with their workers."""
        for name, machine in list(self.machines.items()):
            beats = self.board.increment(keys.MACHINE(name), 0)
            if beats != machine.beats:
                machine.beats, machine.since = beats, now
            elif now - machine.since > self.silence:
                if self.generation == 0:  # no generation has begun, so other machines can start these workers
                    self.ready -= machine.roles
                else:
                    why = f"its supervisor {name} gave no sign for {self.silence:g} s"
                    for worker in sorted(machine.roles):
                        self._handle_gone(worker, name, time.time(), why)
                del self.machines[name]
                for spare in [other for other, known in self.machines.items() if not known.roles]:
                    self.fill(spare)

    def _handle_gone(self, worker: Worker, machine: str, when: float, why: str) -> None:
        if machine not in self.machines or worker not in self.machines[machine].roles:
            return  # an outdated report: this machine no longer runs the worker
        self.machines[machine].roles.discard(worker)
        self.ready.discard(worker)
        self._last_why = why
        if self.generation == 0:
            raise CedarError(f"worker {worker} did not start: {why}", fix="see the worker's output above")
        self.leaving.pop(worker, None)
        if worker not in self.members:
            self._start_failed = True
            return
        if worker in self.ended:
            return
        if self._all_finished():  # the worker may not have written its part of the last checkpoint
            raise CedarError(
                f"worker {worker} is gone while the last checkpoint was written: {why}",
                done="all steps were taken; older checkpoints were not changed",
                fix="start again with --resume: it does the last steps again",
            )
        self._failures.append((worker, when, why))

    def _all_finished(self) -> bool:
        return self.board.increment(keys.FINISHED(self.generation), 0) >= len(self.members)

    # ---- decisions ---------------------------------------------------------------------------------------------------

    def fill(self, machine: str, only: set[Worker] | None = None) -> list[Worker]:
        """Order a machine to start the workers that no machine runs; return them. ``only``: consider only these."""
        taken = {worker for known in self.machines.values() for worker in known.roles}
        free = [worker for worker in self.places if worker not in taken and (only is None or worker in only)]
        for worker in free:
            self._order_worker(machine, worker)
        return free

    def _order_worker(self, machine: str, worker: Worker) -> None:
        self.machines[machine].roles.add(worker)
        number = self.board.increment(keys.ORDERS(machine))
        self.board.put(keys.ORDER(machine, number), list(worker))

    def _start(self) -> None:
        if not self.places_assigned:
            if len(self.machines) < self.expected:
                return
            self.places_assigned = True
            names = sorted(self.machines)
            for worker in self.places:
                self._order_worker(names[worker.replica % len(names)], worker)
        if self.ready >= set(self.places):
            self.members, self.ready = set(self.places), set()
            self._begin("start", restore=self.initial_checkpoint)

    def _handle_failures(self, step: int) -> None:
        failures, self._failures, self._suspected_loss = self._failures, [], None
        dead = {worker for worker, _, _ in failures if worker is not None}
        self.members -= dead
        first = min(when for _, when, _ in failures)
        for worker, when, why in failures:
            kind = "lost connection" if worker is None else "failure"
            self.events.append(Event(kind, worker, self.generation + 1, when, time.time(), why))
        if not dead:
            self._count_repeat("connections broke", step, failures[0][2])
        self._restoring = self._restoring or any(not self._has_worker(stage) for stage in range(self.stages))
        if self._restoring:
            self._restore(step)
        elif self.lost:  # a stage that was redoing steps must start over
            self._begin("", restore=self.latest(), lost=self.lost, detected=first)
        else:
            self._begin("", detected=first)

    def _count_repeat(self, problem: str, step: int, why: str) -> None:
        times, at = self._repeats.get(problem, (0, -1))
        times = times + 1 if step <= at else 1
        self._repeats[problem] = times, step
        if times > _IN_A_ROW:
            raise CedarError(
                f"{problem} {_IN_A_ROW} times without progress" + (f": {why}" if why else ""),
                done="checkpoints were not changed", fix="see what workers say, then start again with --resume",
            )  # fmt: skip

    def _has_worker(self, stage: int) -> bool:
        return any(worker.stage == stage for worker in self.members)

    def _restore(self, step: int) -> None:
        """Order workers for stages that have none. Once they are ready, let some or all stages load a checkpoint."""
        if not self.machines:
            raise CedarError("no supervisor is left", fix="start again with --resume")
        for stage in range(self.stages):
            places = {worker for worker in self.places if worker.stage == stage}
            if not places & (self.members | self.ready) and not self._is_starting(places):
                if self._start_failed:
                    self._count_repeat("new workers did not start", step, self._last_why)
                self._start_failed = False
                self.fill(min(self.machines), places)
        present = self.members | self.ready
        if all(any(worker.stage == stage for worker in present) for stage in range(self.stages)):
            self._count_repeat("the run went back to a checkpoint", step, self._last_why)
            lost = self.lost | {stage for stage in range(self.stages) if not self._has_worker(stage)}
            can_replay_alone = not self._all_restore and self.can_replay_alone(lost)
            self._restoring = self._all_restore = False
            self.leaving.clear()
            self.members, self.ready, self.lost = present, set(), lost if can_replay_alone else set()
            self._begin("replay" if can_replay_alone else "restore", restore=self.latest(), lost=self.lost)

    def _is_starting(self, places: set[Worker]) -> bool:
        return any(machine.roles & places for machine in self.machines.values())

    def _join(self) -> None:
        """Add new workers at a step boundary, once all current workers are waiting there. If the new workers have died
        since, begin a generation without them, so that the others continue.
        """
        if not self._paused:
            self.board.increment(keys.PAUSE(self.generation))
            self._paused = True
        elif self.board.increment(keys.PAUSED(self.generation), 0) >= len(self.members):
            joins, self.ready = self.ready, set()
            self.members |= joins
            for worker in sorted(joins):
                before = self.leaving.get(worker)
                kind, why = ("join", "") if before is None else ("move", f"from {before}")
                self.events.append(Event(kind, worker, self.generation + 1, time.time(), time.time(), why))
            leaves = self._take_leavers(joins)
            restore = self.latest() if self.lost else None
            self._begin("", joins=tuple(sorted(joins)), leaves=leaves, restore=restore, lost=self.lost)

    def move(self, worker: Worker, role: Worker) -> None:
        """Move a live worker to a dead worker's position in another stage. The worker's machine starts a new process,
        and a peer sends it the stage's state. The old process ends at the step boundary at which the new one joins.
        """
        machine = next(name for name, known in self.machines.items() if worker in known.roles)
        self.leaving[role] = worker
        self._order_worker(machine, role)

    def _take_leavers(self, joins: set[Worker]) -> tuple[Worker, ...]:
        """Remove and return the workers whose new process has joined; keep any that is the last worker of its stage."""
        leavers = []
        for worker in filter(None, (self.leaving.pop(role, None) for role in sorted(joins))):
            stays = [other for other in self.members if other.stage == worker.stage and other != worker]
            if worker in self.members and stays:
                self.members.discard(worker)
                leavers.append(worker)
                for machine in self.machines.values():
                    machine.roles.discard(worker)
        return tuple(leavers)

    def _begin(
        self, kind: str, *, joins: tuple[Worker, ...] = (), leaves: tuple[Worker, ...] = (),
        restore: str | None = None, lost: Collection[int] = (), detected: float = 0.0,
    ) -> None:  # fmt: skip
        self.generation += 1
        self._replayed = set()
        if restore is not None and not lost:
            self.line = self.generation
        if kind:
            self.events.append(Event(kind, None, self.generation, time.time(), time.time(), restore or ""))
        self._paused, self._suspected_loss = False, None
        self.board.begin(
            Epoch(
                self.generation, tuple(sorted(self.members)), joins, restore, tuple(sorted(lost)), leaves,
                self.line, self.plans, detected,
            )
        )  # fmt: skip
