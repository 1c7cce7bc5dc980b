"""A stage that has lost all its workers does its steps since the checkpoint again; its neighbours only send."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from cedar.trainers.resilient.executor import Executor, Kept, Result, Transport
from cedar.trainers.resilient.history import History, Key, Sources
from cedar.trainers.resilient.model import Engine, Signature
from cedar.trainers.resilient.schedule import Instruction, Kind, Schedule, Worker

_KINDS: tuple[Kind, Kind, Kind] = ("F", "B_INPUT", "B_WEIGHT")


def keys_of(schedule: Schedule, worker: Worker) -> list[Key]:
    """The micro-batches that a worker works."""
    return sorted((done.replica, done.micro_batch) for done in schedule.work[worker] if done.kind == "F")


def send_logs(
    transport: Transport, me: Worker, schedule: Schedule, sources: Iterable[Sources], history: History
) -> None:
    """Send what others need of this worker's logs. Does not wait."""
    for lost in sources:
        for to in schedule.peers(lost.stage):
            mine = keys_of(schedule, to)
            for step in lost.steps:
                for sender, what, key in lost.messages(step, mine):
                    if sender == me:
                        past = history.steps[step]
                        tensor = past.tied if what == "tied" else getattr(past, what)[key]
                        assert tensor is not None, "it was told of"
                        transport.send(to, tensor)


def expect_logs(
    transport: Transport, schedule: Schedule, me: Worker, sources: Sources, engine: Engine
) -> None:  # fmt: skip
    """Announce all that ``send_logs`` of others sends here."""
    mine, layout = keys_of(schedule, me), engine.layout
    signatures = {
        "outputs": engine.inputs, "gradients": engine.outputs, "tied": Signature((layout.tied,), layout.dtype)
    }  # fmt: skip
    for step in sources.steps:
        for sender, what, _ in sources.messages(step, mine):
            signature = signatures[what]
            assert signature is not None, "the engine has looked at an input"
            transport.expect(sender, *signature)


def replay_step(
    executor: Executor, schedule: Schedule, step: int, sources: Sources, told: Callable[[int, Instruction, bool], None]
) -> tuple[Kept, Result]:
    """A step of this worker with logged messages: F, B_INPUT and B_WEIGHT of each of its micro-batches, and the sum.

    Args:
        executor: with the data, and a transport to which everything was announced.
        schedule: says who works what.
        step: of the run.
        sources: who sends what.
        told: called with a number, what is done, and whether somebody is waited for.
    """
    engine, transport, kept = executor.engine, executor.transport, Kept(step)
    mine = keys_of(schedule, executor.me)
    engine.reset()
    got: dict[tuple[str, Key], torch.Tensor] = {}
    waiting: Mapping[Key, Sequence[tuple[Worker, str]]] = {
        key: [(w, what) for w, what, at in sources.messages(step, mine) if at == key and what != "tied"] for key in mine
    }
    for at, key in enumerate(mine):
        told(3 * at, Instruction("RECV_F", *key, 0), True)
        for sender, what in waiting[key]:
            got[what, key] = transport.receive(sender)
        for number, kind in enumerate(_KINDS):
            done = Instruction(kind, *key)
            told(3 * at + number, done, False)
            executor.compute(
                done, step, kept, {key: got.get(("outputs", key))}, {key: got.get(("gradients", key))}
            )  # fmt: skip
    told(3 * len(mine), Instruction("ALL_REDUCE"), True)
    tied = transport.receive(sources.tied[step]) if step in sources.tied else None
    gradient, norm = executor.sum(schedule, kept, tied)
    return kept, Result(gradient, norm, dict(kept.losses))
