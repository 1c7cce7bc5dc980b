"""Upstream logs: the messages that crossed stage boundaries since the last checkpoint.

A stage that has lost all its workers uses these logs to redo the steps since the checkpoint, while other stages
recompute nothing (the localized recovery of MoEvement, arXiv 2412.15411). It needs the activations from the previous
stage, the gradients from the next stage, the gradients' scale factors, and the gradient sums of shared weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import torch

from cedar.trainers.resilient.control import protocol as keys
from cedar.trainers.resilient.executor import Executor, FinishedWork, Result, Transport
from cedar.trainers.resilient.model import Engine, Signature
from cedar.trainers.resilient.schedule import Instruction, Kind, Schedule, Worker

if TYPE_CHECKING:
    from cedar.trainers.resilient.trainer import Trainer

Key = tuple[int, int]
Reported = Mapping[str, Any]


@dataclass
class PastStep:
    """The messages that one worker sent in one step, in host memory."""

    outputs: dict[Key, torch.Tensor] = field(default_factory=dict)
    gradients: dict[Key, torch.Tensor] = field(default_factory=dict)
    tied: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        tensors = [*self.outputs.values(), *self.gradients.values()]
        return sum(t.nbytes for t in tensors) + (0 if self.tied is None else self.tied.nbytes)


class History:
    """The messages that a worker has sent, by step. ``first``: it is in the first stage, which sends no gradients.
    ``last``: it is in the last stage, which sends no activations.
    """

    def __init__(self, *, first: bool, last: bool) -> None:
        self.first, self.last = first, last
        self.steps: dict[int, PastStep] = {}
        self.scales: dict[int, float | None] = {}

    def add(self, step: int, kept: FinishedWork, tied: torch.Tensor | None) -> None:
        """Log the messages of a step. If the worker runs the step again, new messages are added to the logged ones."""
        past = self.steps.setdefault(step, PastStep())
        if not self.last:
            past.outputs |= {key: tensor.cpu() for key, tensor in kept.outputs.items()}
        if not self.first:
            past.gradients |= {key: tensor.cpu() for key, tensor in kept.gradients.items() if tensor is not None}
        if tied is not None:
            past.tied = tied.cpu().clone()

    def log_scale(self, step: int, scale: float | None) -> None:
        """Log the factor that a step's gradients were multiplied by; None: the step was skipped."""
        self.scales[step] = scale

    def forget(self, before: int) -> None:
        """Drop the logs of steps before this one, because a checkpoint now covers them."""
        self.steps = {step: past for step, past in self.steps.items() if step >= before}
        self.scales = {step: scale for step, scale in self.scales.items() if step >= before}

    @property
    def nbytes(self) -> int:
        return sum(past.nbytes for past in self.steps.values())

    def describe(self) -> dict[str, Any]:
        """Return which messages are logged, without the tensors: JSON."""
        return {
            "outputs": [[step, sorted(map(list, past.outputs))] for step, past in self.steps.items()],
            "gradients": [[step, sorted(map(list, past.gradients))] for step, past in self.steps.items()],
            "tied": [step for step, past in self.steps.items() if past.tied is not None],
            "scales": [[step, scale] for step, scale in self.scales.items()],
        }


@dataclass(frozen=True)
class Sources:
    """Which workers send the logged messages to a stage that redoes its steps."""

    stage: int
    steps: range
    # for each step and micro-batch, the worker that logged the activations; empty for the first stage
    outputs: Mapping[tuple[int, Key], Worker]
    gradients: Mapping[tuple[int, Key], Worker]  # the same for gradients; empty for the last stage
    tied: Mapping[int, Worker]  # for each step, the worker that logged the sum of shared gradients
    scales: Mapping[int, float | None]  # gradient scale of each step; staggered mode may lack the last one

    def messages(self, step: int, mine: Sequence[Key]) -> Iterator[tuple[Worker, str, Key]]:
        """Yield (sender, log, micro-batch) of each message for a step, in sending order. ``mine``: the receiver's."""
        for key, log in product(mine, ("outputs", "gradients")):
            senders: Mapping[tuple[int, Key], Worker] = getattr(self, log)
            if (step, key) in senders:
                yield senders[step, key], log, key
        if step in self.tied:
            yield self.tied[step], "tied", (0, 0)


def find_sources(
    reported: Mapping[Worker, Reported], stage: int, steps: range, *, stages: int, keys: Sequence[Key],
    tied: Sequence[int],
    staggered: bool,
) -> Sources | None:  # fmt: skip
    """Choose which workers send logs, identically on every worker. Return None if a required message is in no log.

    Args:
        reported: which messages each live worker has logged.
        stage: the stage that has lost all its workers.
        steps: the steps that it must redo.
        tied: stages that share weights.
        staggered: whether the last step's gradient scale may be unknown, as in staggered mode.
    """

    def holders(neighbor: int, log: str) -> dict[tuple[int, Key], Worker] | None:
        senders: dict[tuple[int, Key], Worker] = {}
        if not 0 <= neighbor < stages:
            return senders
        for worker in sorted((w for w in reported if w.stage == neighbor), reverse=True):
            senders |= {(step, (r, m)): worker for step, logged in reported[worker][log] for r, m in logged}
        return senders if all((step, key) in senders for step in steps for key in keys) else None

    outputs, gradients = holders(stage - 1, "outputs"), holders(stage + 1, "gradients")
    shares = stage in tied
    sums = {
        step: worker
        for worker in sorted((w for w in reported if shares and w.stage in tied), reverse=True)
        for step in reported[worker]["tied"]
    }
    scales = {step: scale for logged in reported.values() for step, scale in logged["scales"]}
    known = steps[:-1] if staggered else steps
    if outputs is None or gradients is None or (shares and not all(step in sums for step in steps)):
        return None
    return Sources(stage, steps, outputs, gradients, sums, scales) if all(step in scales for step in known) else None


_KINDS: tuple[Kind, Kind, Kind] = ("F", "B_INPUT", "B_WEIGHT")


def micro_batches_of(schedule: Schedule, worker: Worker) -> list[Key]:
    """Return the micro-batches that a worker processes in a step."""
    return sorted((done.replica, done.micro_batch) for done in schedule.work[worker] if done.kind == "F")


def send_logs(
    transport: Transport, me: Worker, schedule: Schedule, sources: Iterable[Sources], history: History
) -> None:
    """Send the logged messages that other workers need from this one. Does not block."""
    for lost in sources:
        for to in schedule.peers(lost.stage):
            mine = micro_batches_of(schedule, to)
            for step in lost.steps:
                for sender, log, key in lost.messages(step, mine):
                    if sender == me:
                        past = history.steps[step]
                        tensor = past.tied if log == "tied" else getattr(past, log)[key]
                        assert tensor is not None, "it was announced"
                        transport.send(to, tensor)


def expect_logs(
    transport: Transport, schedule: Schedule, me: Worker, sources: Sources, engine: Engine
) -> None:  # fmt: skip
    """Announce to the transport all messages that other workers will send to this one with ``send_logs``."""
    mine, layout = micro_batches_of(schedule, me), engine.layout
    signatures = {
        "outputs": engine.inputs, "gradients": engine.outputs, "tied": Signature((layout.tied,), layout.dtype)
    }  # fmt: skip
    for step in sources.steps:
        for sender, log, _ in sources.messages(step, mine):
            signature = signatures[log]
            assert signature is not None, "the engine has looked at an input"
            transport.expect(sender, *signature)


def replay_step(
    executor: Executor,
    schedule: Schedule,
    step: int,
    sources: Sources,
    reported: Callable[[int, Instruction, bool], None],
) -> tuple[FinishedWork, Result]:
    """Redo this worker's step from logged messages: F, B_INPUT and B_WEIGHT of each micro-batch, then ALL_REDUCE.
    ``executor``: its transport must know all messages, from ``expect_logs``. ``reported``: called before each
    instruction with its position, the instruction, and whether it waits.
    """
    engine, transport, kept = executor.engine, executor.transport, FinishedWork(step)
    mine = micro_batches_of(schedule, executor.me)
    engine.reset()
    received: dict[tuple[str, Key], torch.Tensor] = {}
    waiting: Mapping[Key, Sequence[tuple[Worker, str]]] = {
        key: [(w, log) for w, log, at in sources.messages(step, mine) if at == key and log != "tied"] for key in mine
    }
    for at, key in enumerate(mine):
        reported(3 * at, Instruction("RECV_F", *key, 0), True)
        for sender, log in waiting[key]:
            received[log, key] = transport.receive(sender)
        for number, kind in enumerate(_KINDS):
            done = Instruction(kind, *key)
            reported(3 * at + number, done, False)
            executor.compute(
                done, step, kept, {key: received.get(("outputs", key))}, {key: received.get(("gradients", key))}
            )  # fmt: skip
    reported(3 * len(mine), Instruction("ALL_REDUCE"), True)
    tied = transport.receive(sources.tied[step]) if step in sources.tied else None
    gradient, norm = executor.sum_gradients(schedule, kept, tied)
    return kept, Result(gradient, norm, dict(kept.losses))


def recover(trainer: Trainer, versions: dict[Worker, int], transport: Transport) -> None:
    """Recover lost stages: their new workers redo steps, from logs that other workers send. All members call this.

    If a required message is in no log, every worker waits here until the coordinator starts a restore of all stages.
    ``trainer``: this worker; its state is updated if its stage is lost. ``versions``: how many steps each worker has
    taken; updated for the workers of lost stages.

    Raises:
        Superseded: a newer generation has begun.
    """
    job, epoch, waiting, me = trainer.job, trainer.epoch, trainer.waiting, trainer.me
    intact = {worker: version for worker, version in versions.items() if worker.stage not in epoch.lost}
    until = min(intact.values(), default=0)
    if me in intact:
        trainer.board.put(keys.LOGS(epoch.number, me), trainer.history.describe())
    names = sorted(intact)
    wanted = [keys.LOGS(epoch.number, worker) for worker in names]
    logs = waiting.poll(partial(trainer.board.get_all, wanted), "the logs of other workers")
    reported = dict(zip(names, logs, strict=True))
    every = [(replica, number) for replica in range(job.replicas) for number in range(job.micro_batches)]
    begin = {stage: min(v for w, v in versions.items() if w.stage == stage) for stage in epoch.lost}
    sources_of_lost = [
        find_sources(
            reported, stage, range(begin[stage], until), stages=job.stages, keys=every, tied=job.tied,
            staggered=job.mode == "staggered",
        )
        for stage in epoch.lost
    ]  # fmt: skip
    sources = [one for one in sources_of_lost if one is not None]
    if len(sources) < len(sources_of_lost):
        trainer.board.report("unlogged", generation=epoch.number, worker=me)
        trainer.idle(waiting)
    send_logs(transport, me, trainer.schedule, sources, trainer.history)
    for one in sources:
        if one.stage == me.stage:
            _redo_steps(trainer, one, transport)
            trainer.board.report("replayed", generation=epoch.number, worker=me)
    versions |= {worker: until for worker in versions if worker.stage in epoch.lost}


def _redo_steps(trainer: Trainer, sources: Sources, transport: Transport) -> None:
    job, engine, me = trainer.job, trainer.engine, trainer.me
    expect_logs(transport, trainer.schedule, me, sources, engine)
    trainer.data = trainer.open()
    executor = trainer.make_executor(transport)
    for step in sources.steps:
        trainer.step = step
        frozen = trainer.windows.frozen if trainer.windows is not None and trainer.state.whole_at else ()
        engine.load(trainer.state, frozen)
        report = partial(trainer.report_redone, step)
        kept, result = replay_step(executor, trainer.schedule, step, sources, report)
        assert result.gradient is not None
        trainer.log_messages(step, kept, result.gradient)
        # the dead workers may not have reported the losses and the end of this step
        if me.stage == job.stages - 1 and step + 2 >= sources.steps.stop:
            trainer.publish_losses(result)
            trainer.board.put_if_absent(keys.DONE(trainer.epoch.line, step), time.time())
        if step in sources.scales:
            scale = sources.scales[step]
            trainer.history.log_scale(step, scale)
            trainer.state = trainer.take_step(trainer.state, result.gradient, scale)
            trainer.pending = None
            trainer.commit(step)
        else:
            trainer.step_eagerly(result)
            trainer.commit(step - 1)
