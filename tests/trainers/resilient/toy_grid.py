"""A grid of trainers in threads of this process, on the strict transport, with failures at chosen instructions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from cedar.trainers.common.config import AdamWOptions
from cedar.trainers.resilient.control.board import Board, Epoch, Mailbox
from cedar.trainers.resilient.control.store import Values
from cedar.trainers.resilient.executor import Executor, FinishedWork, Result, Waiting
from cedar.trainers.resilient.member import Job, digest
from cedar.trainers.resilient.model import AdamW, Engine, Stage, State, Transformer, token_loss
from cedar.trainers.resilient.schedule import Instruction, Schedule, Worker, grid
from cedar.trainers.resilient.trainer import Trainer
from cedar.trainers.resilient.windows import SparseCheckpoints, newest_window
from tests.trainers.resilient.toy_transport import StrictNetwork, StrictTransport

MODEL = Transformer(vocabulary=17, length=5, layers=2, width=8, heads=2, dropout=0.1)
JOB = Job(stages=2, replicas=2, micro_batches=3, steps=4, tied=(0, 1), patience=60)


class Tokens:
    """Random tokens, the same for every worker who asks; remembers what was committed."""

    def __init__(self) -> None:
        self.committed = -1

    def _rows(self, step: int, key: tuple[int, int]) -> torch.Tensor:
        assert step > self.committed, "a committed step was read again"
        seeded = torch.Generator().manual_seed(step * 1000 + key[0] * 50 + key[1])
        return torch.randint(0, 17, (2, 6), generator=seeded)

    def inputs(self, step: int, key: tuple[int, int]) -> torch.Tensor:
        return self._rows(step, key)[:, :-1]

    def targets(self, step: int, key: tuple[int, int]) -> torch.Tensor:
        return self._rows(step, key)[:, 1:]

    def commit(self, step: int) -> None:
        self.committed = step

    def close(self) -> None:
        pass


class Saved:
    """Checkpoints in memory, by step and stage."""

    def __init__(self, every: int, stages: int) -> None:
        self.every, self.stages = every, stages
        self.states: dict[int, dict[int, State]] = {}

    def latest(self) -> str:
        return str(max((step for step, states in self.states.items() if len(states) == self.stages), default=""))

    def of(self, stage: int, board: Board) -> Saver:
        return Saver(self, stage, board)


@dataclass
class Saver:
    """One worker's part in them."""

    saved: Saved
    stage: int
    board: Board

    def due(self, step: int) -> bool:
        return step % self.saved.every == 0

    def save(self, state: State, epoch: Epoch) -> None:
        self.saved.states.setdefault(state.version, {})[self.stage] = state
        if self.saved.latest():
            self.board.put("persisted", int(self.saved.latest()))

    def load(self, path: str) -> State:
        return self.saved.states[int(path)][self.stage]

    def wait(self) -> None:
        pass


def engine(stage: int, stages: int = 2, model: Transformer = MODEL, **more: Any) -> Engine:
    """One stage's, with its first weights loaded."""
    tied = {"tokens.weight": "tokens.weight"} if model.tied and stages > 1 and stage in (0, stages - 1) else {}
    made = Engine(Stage(model, stage, stages), stage, stages, token_loss, tied=tied, seed=3, share=1 / 6, **more)
    made.find_signatures(
        Tokens().inputs(0, (0, 0)) if stage == 0 else torch.zeros(2, model.length, model.width, dtype=more.get("dtype"))
    )
    made.load(made.initial_state)
    return made


def once(
    schedule: Schedule, model: Transformer = MODEL, kept: Mapping[Worker, FinishedWork] | None = None, **more: Any
) -> Any:
    """Carry a schedule out once; each worker's result, and the network."""
    fifo = StrictNetwork()
    found: dict[Worker, Result] = {}
    errors: list[BaseException] = []

    def work(worker: Worker) -> None:
        try:
            transport = StrictTransport(fifo, worker, Waiting(0, lambda: len(errors), 60))
            mine = engine(worker.stage, schedule.stages, model)
            executor = Executor(worker, mine, transport, Tokens(), **more)
            found[worker] = executor.run(schedule, 0, kept[worker] if kept else FinishedWork(0))
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in schedule.work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]
    return found, fifo


class Killed(BaseException):
    """A worker that dies on purpose."""


@dataclass
class Crew:
    """All trainers of a run; its main thread is the lead.

    Args:
        job: the run.
        kills: for a worker, the step and the instruction at which it dies.
        rejoin: dead workers come back.
        clip: of gradients.
        watch: called before each instruction.
        every: steps between dense checkpoints, in memory.
        window: steps of a sparse one, in ``folder``.
    """

    job: Job = JOB
    kills: Mapping[Worker, tuple[int, int]] = field(default_factory=dict)
    rejoin: bool = False
    clip: float = 0.0
    watch: Callable[[Worker, int, int, Instruction], None] = lambda *_: None
    model: Transformer = MODEL
    every: int = 0
    folder: str = ""
    window: int = 0
    restores: list[str] = field(default_factory=list)
    generation: int = 0
    digests: dict[Worker, str] = field(default_factory=dict)
    errors: list[BaseException] = field(default_factory=list)
    trainers: dict[Worker, Trainer] = field(default_factory=dict)
    waits: dict[Worker, bool] = field(default_factory=dict)  # what each has said last

    def run(self) -> dict[Worker, str]:
        """Until all who are alive have ended; the digests of their weights."""
        self.board, self.fifos, self.lock = Board(Values()), {}, threading.Lock()  # type: ignore[var-annotated]
        self.dead: list[Worker] = []
        self.saved = Saved(self.every, self.job.stages)
        mailbox, lost, replayed = Mailbox(self.board, 60), set(), set()  # type: ignore[var-annotated]
        self.members = set(grid(self.job.stages, self.job.replicas))
        self.threads = {worker: self._start(worker, self.kills.get(worker)) for worker in self.members}
        self._begin(restore="")
        joining: set[Worker] = set()
        end = time.monotonic() + 120
        while not self.members <= set(self.digests) and not self.errors:
            assert time.monotonic() < end, "the run hangs"
            time.sleep(0.002)
            for report in mailbox.read_new(0.0):
                if report["generation"] != self.generation:
                    continue
                if report["what"] == "replayed":
                    replayed.add(Worker(*report["worker"]))
                elif report["what"] == "unlogged":
                    lost.clear()
                    self._begin(restore=self._latest(), line=self.generation + 1)
            lost = {stage for stage in lost if not {w for w in self.members if w.stage == stage} <= replayed}
            if self.dead:
                dying = [self.dead.pop() for _ in range(len(self.dead))]
                self.members -= set(dying)
                worker = dying[0]
                gone = {stage for stage in range(self.job.stages) if not any(w.stage == stage for w in self.members)}
                for back in [w for w in self.threads if w.stage in gone]:
                    self.threads[back] = self._start(back, None)
                    self.members.add(back)
                lost |= gone
                replayed = set()
                if lost:
                    self._begin(restore=self._latest(), lost=tuple(sorted(lost)))
                    continue
                self._begin()
                if self.rejoin:
                    self.threads[worker] = self._start(worker, None)
                    joining.add(worker)
            elif joining:
                self.board.increment(f"pause/{self.generation}")
                if self.board.increment(f"paused/{self.generation}", 0) == len(self.members):
                    self.members |= joining
                    self._begin(joins=tuple(sorted(joining)))
                    joining = set()
        last, self.generation = self.generation, 1 << 30  # any code that still waits gives up
        for thread in self.threads.values():
            thread.join(60)
        self.generation = last
        if self.errors:
            raise self.errors[0]
        return self.digests

    def _latest(self) -> str:
        return newest_window(self.folder, self.job.steps) if self.window else self.saved.latest()

    def _windows(self, worker: Worker, engine: Engine) -> SparseCheckpoints | None:
        return SparseCheckpoints(
            self.folder, worker, engine.layout, self.board, engine=engine, window=self.window, stages=self.job.stages,
            keep=1, shared_elsewhere=worker.stage != min(self.job.tied, default=worker.stage),
        ) if self.window else None  # fmt: skip

    def _begin(self, **more: Any) -> None:
        self.line = more.setdefault("line", getattr(self, "line", 1))
        if more.get("restore") is not None:
            self.restores.append("replay" if more.get("lost") else "restore")
        self.board.begin(Epoch(self.generation + 1, tuple(sorted(self.members)), **more))
        self.generation += 1

    def _start(self, worker: Worker, kill: tuple[int, int] | None) -> threading.Thread:
        since = self.generation

        def progress(step: int, at: int, done: Instruction, waiting_for: Worker | None) -> None:
            self.waits[worker] = waiting_for is not None or done.kind == "ALL_REDUCE"
            self.watch(worker, step, at, done)
            if self.generation == 1 << 30 or (kill is not None and at >= 0 and (step, at) >= kill):
                raise Killed

        def connect(epoch: Epoch, waiting: Waiting) -> StrictTransport:
            with self.lock:
                fifo = self.fifos.setdefault(epoch.number, StrictNetwork())
            return StrictTransport(fifo, worker, waiting)

        def work() -> None:
            mine = engine(worker.stage, self.job.stages, self.model)
            trainer = self.trainers[worker] = Trainer(
                worker, self.job, mine,
                AdamW(AdamWOptions(rate=1e-2, schedule="constant", clip=self.clip)), self.board,
                newest=lambda: self.generation, connect=connect,
                data=Tokens, progress=progress, since=since,
                saver=self.saved.of(worker.stage, self.board) if self.every else None,
                windows=self._windows(worker, mine),
            )  # fmt: skip
            try:
                self.digests[worker] = digest(trainer.train())
            except Killed:
                self.dead.append(worker)
            except BaseException as error:  # noqa: BLE001 - raised by run()
                self.errors.append(error)

        thread = threading.Thread(target=work, name=f"trainer {worker}", daemon=True)
        thread.start()
        return thread


def job(**changes: Any) -> Job:
    """The usual one, with changes."""
    return replace(JOB, **changes)
