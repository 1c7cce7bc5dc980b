"""One worker: how a generation's members agree on the step and state to continue from."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from cedar.core.errors import CedarError
from cedar.trainers.resilient.control import protocol as keys
from cedar.trainers.resilient.control.board import Board, Epoch
from cedar.trainers.resilient.executor import Executor, FinishedWork, Reduction, Transport, Waiting
from cedar.trainers.resilient.executor.run import Progress
from cedar.trainers.resilient.history import History
from cedar.trainers.resilient.manager import WorkerDurations
from cedar.trainers.resilient.model import Engine, Optimizer, State
from cedar.trainers.resilient.planner import Memory, Problem
from cedar.trainers.resilient.planning import schedule_of
from cedar.trainers.resilient.schedule import Costs, Instruction, Mode, Worker

if TYPE_CHECKING:
    from cedar.trainers.resilient.checkpoint import Checkpoints
    from cedar.trainers.resilient.data import MicroBatches
    from cedar.trainers.resilient.windows import SparseCheckpoints


class Fenced(CedarError):
    """The other workers have continued without this one, so its work no longer counts."""


class MovedAway(Exception):
    """This worker has moved to another position in the grid, where a new process continues its work."""


@dataclass(frozen=True)
class Job:
    """The settings that all workers of a run share."""

    stages: int
    replicas: int
    micro_batches: int  # per pipeline and step
    steps: int
    mode: Mode = "sync"  # ``sync``: a step is final once all vote; ``staggered``: each stage steps when ready
    reduction: Reduction = "exact"  # ``exact`` or ``fast``
    memory: Memory = "1f1b"  # how many activations a worker may keep
    tied: tuple[int, ...] = ()  # stages that share weights
    logs: bool = True  # keep a step's finished work until the step commits
    # log messages between stages until a checkpoint covers them, so that a lost stage can be restored on its own
    replay: bool = False
    patience: float = 600.0  # seconds after which any wait fails
    pace: float = 0.0  # min seconds for each F, B_INPUT and B_WEIGHT

    def problem(self, dead: frozenset[Worker], costs: Costs | None = None) -> Problem:
        return Problem(
            self.stages, self.replicas, self.micro_batches, dead, self.memory, self.mode, costs or Costs(), self.tied
        )


@dataclass(frozen=True)
class Pending:
    """A step that a stage took before the gradient norms of all stages were known, and the data to undo it."""

    state: State  # weights and optimizer state before the step
    gradient: torch.Tensor
    scale: float | None  # the factor used for the gradients; None: the step was skipped
    line: int  # generation in which all stages were last restored; part of the key of the norms

    @property
    def nbytes(self) -> int:
        return self.state.nbytes + self.gradient.nbytes


def send_state(transport: Transport, to: Worker, state: State, pending: Pending | None) -> None:
    """Send everything that a joining worker of the same stage needs."""
    line = 0 if pending is None else pending.line
    before = state if pending is None else pending.state
    scale = torch.tensor([0.0 if pending is None or pending.scale is None else pending.scale], dtype=torch.float64)
    skipped = pending is not None and pending.scale is None
    numbers = [state.version, state.updates, before.version, before.updates, line, int(skipped)]
    numbers += [state.whole_at, before.whole_at]
    transport.send(to, torch.tensor(numbers, dtype=torch.int64))
    vectors = [state.master, state.first, state.second]
    if pending is not None:
        vectors += [before.master, before.first, before.second, pending.gradient]
    transport.send(to, torch.cat(vectors))
    if pending is not None:
        transport.send(to, scale)


def receive_state(transport: Transport, source: Worker, like: torch.Tensor) -> tuple[State, Pending | None]:
    """Receive what ``send_state`` sent; ``like``: a vector of the stage's size and dtype."""
    transport.expect(source, (8,), torch.int64)
    version, updates, before, before_updates, line, skipped, *whole = transport.receive(source).tolist()
    transport.expect(source, (len(like) * (7 if line else 3),), like.dtype)
    received = transport.receive(source).to(like).view(7 if line else 3, len(like))
    parts = [part.clone() for part in received.unbind()]
    state = State(version, updates, parts[0], parts[1], parts[2], whole[0])
    if not line:
        return state, None
    transport.expect(source, (1,), torch.float64)
    scale = float(transport.receive(source))
    old = State(before, before_updates, parts[3], parts[4], parts[5], whole[1])
    return state, Pending(old, parts[6], None if skipped else scale, line)


def digest(state: State) -> str:
    """Return a hash of the weights' bits."""
    return hashlib.blake2b(state.master.cpu().view(torch.uint8).numpy().tobytes(), digest_size=16).hexdigest()


class Member:
    """One worker, across generations; ``Trainer`` adds the training loop.

    Args:
        optimizer: the optimizer; the same on all workers.
        newest: returns the number of the newest generation; called often, so it must be cheap.
        connect: opens the transport of a generation; may block.
        data: opens the data; called again after a restore.
        since: the newest generation when this worker registered; the worker can only be in later generations.
    """

    def __init__(  # noqa: PLR0913 - each has a name
        self, me: Worker, job: Job, engine: Engine, optimizer: Optimizer, board: Board, *, newest: Callable[[], int],
        connect: Callable[[Epoch, Waiting], Transport], data: Callable[[], MicroBatches],
        saver: Checkpoints | None = None, windows: SparseCheckpoints | None = None,
        progress: Progress | None = None, since: int = 0,
    ) -> None:  # fmt: skip
        self.me, self.job, self.engine, self.optimizer, self.board = me, job, engine, optimizer, board
        self.newest, self.connect, self.open, self.since = newest, connect, data, since
        self.saver, self.windows = saver, windows
        self.progress: Progress = progress or (lambda *_: None)
        self.epoch: Epoch
        self.waiting: Waiting
        self.state: State = engine.initial_state
        self.pending: Pending | None = None
        self.step, self.kept = 0, FinishedWork(0)
        self.ahead: frozenset[int] = frozenset()
        self.times: dict[str, float] = {}
        self.history = History(first=me.stage == 0, last=me.stage == job.stages - 1)
        self.logged = 0  # peak bytes of the logs
        self.redone = 0  # number of finished micro-batches that a repeated step reuses
        self.peak = 0  # peak bytes of weights, optimizer state and their copies
        self.durations = WorkerDurations()
        self._has_state = False
        self.transport: Transport | None = None
        self.data: MicroBatches | None = None

    def idle(self, waiting: Waiting) -> None:
        """Wait until a newer generation begins, then raise Superseded."""
        self._report_progress("STEP", waits=True)
        waiting.until(_sleep, "a new generation")

    def report_redone(self, step: int, at: int, done: Instruction, waits: bool) -> None:
        """Report this worker's progress in a step that it redoes from logs."""
        self.progress(step, at, done, self.me if waits else None)

    def _report_progress(self, kind: Any, *, waits: bool = False) -> None:
        self.progress(self.step, -1, Instruction(kind), self.me if waits else None)

    def make_plan(self) -> None:
        """Plan this generation's schedule, or load it from the store."""
        self.times["agreed"] = time.time()
        planned = schedule_of(self.board, self.epoch, self.job.problem, self.me, self.waiting)
        self.times["planned"] = time.time()
        self.schedule = planned.schedule
        if self.me == self.epoch.members[0]:
            self.board.put(keys.PERIOD(self.epoch.number), planned.period)

    def make_executor(self, transport: Transport) -> Executor:
        """Make the executor of this generation."""
        assert self.data is not None
        executor = Executor(
            self.me, self.engine, transport, self.data, reduction=self.job.reduction,
            progress=self.progress, pace=self.job.pace,
        )  # fmt: skip
        executor.on_compute = self._on_first_compute
        return executor

    def _restore(self, path: str) -> None:
        for each in filter(None, (self.saver, self.windows)):
            each.wait()
        saver = self.saver if self.windows is None or not self.windows.contains(path) else self.windows
        if saver is not None and path:
            self.state = saver.load(path).to(self.engine.device)
        else:
            self.state = self.engine.initial_state
        if self.data is not None:
            self.data.close()
        self.pending, self.data, self._has_state = None, None, True
        self.kept = FinishedWork(-1)
        self.history.forget(self.job.steps)

    def log_messages(self, step: int, kept: FinishedWork, gradient: torch.Tensor | None) -> None:
        """Log the messages that crossed stage boundaries, if replay is enabled."""
        if self.job.replay:
            shared = self.engine.layout.tied
            self.history.add(step, kept, gradient[:shared] if gradient is not None and shared else None)
            self.logged = max(self.logged, self.history.nbytes)

    def take_step(self, state: State, gradient: torch.Tensor, scale: float | None) -> State:
        """Take an optimizer step. During a restore from a sparse checkpoint, also load the next slot's operators."""
        after = self.optimizer.step(state, gradient, self.engine.layout, scale)
        if not state.whole_at:
            return after
        assert self.windows is not None, "the state came from there"
        return self.windows.thaw(after, state.whole_at)

    def _exchange_versions(self) -> dict[Worker, int]:
        """Return how many steps each worker has taken, without joining workers, which have no state yet."""
        number = self.epoch.number
        self.board.put(keys.AT(number, self.me), self.state.version if self._has_state else None)
        wanted = [keys.AT(number, worker) for worker in self.epoch.members]
        reported = self.waiting.poll(partial(self.board.get_all, wanted), "the step counts of all workers")
        return {w: version for w, version in zip(self.epoch.members, reported, strict=True) if version is not None}

    def _agree(self, versions: dict[Worker, int], transport: Transport) -> None:
        """Find the step to continue with, bring each stage's workers to one step, and send state to joining workers."""
        stages = [min((v for w, v in versions.items() if w.stage == s), default=-1) for s in range(self.job.stages)]
        self.step = min(stages)
        for stage in self.job.tied:  # stages that share weights sum gradients together, so they must step together
            stages[stage] = min(stages[each] for each in self.job.tied)
        if self.step < 0:
            raise CedarError(f"no worker of stage {stages.index(-1)} has its weights", fix="restore a checkpoint")
        stage_version = stages[self.me.stage]
        self.ahead = frozenset(stage for stage, version in enumerate(stages) if version > self.step)
        if self._has_state and self.state.version > stage_version:
            before = None if self.pending is None else self.pending.state.version
            assert before == stage_version, "a stage is one step ahead at most"
            assert self.pending is not None
            self.state, self.pending = self.pending.state, None
        if self.pending is not None and self.pending.state.version < self.step:
            self._validate()
        peers = sorted(w for w in versions if w.stage == self.me.stage)
        joining = [w for w in self.epoch.members if w not in versions and w.stage == self.me.stage]
        if self.me == peers[0]:
            for worker in joining:
                send_state(transport, worker, self.state, self.pending)
        elif self.me in joining:
            self.state, self.pending = receive_state(transport, peers[0], self.engine.initial_state.master)
            self._has_state = True
            self.data = None

    def _on_first_compute(self) -> None:
        if "redo" not in self.times:
            self.times["redo"] = time.time()
            self.board.put(keys.RECOVERY(self.epoch.number, self.me), self.times | {"kept": self.redone})

    def _validate(self) -> bool:
        raise NotImplementedError


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False
