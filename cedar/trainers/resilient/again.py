"""The way back of a stage that has lost all its workers: its new ones restore, and do the steps since then again."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from cedar.trainers.resilient.control import protocol as keys
from cedar.trainers.resilient.executor import Transport
from cedar.trainers.resilient.history import Sources, find_sources
from cedar.trainers.resilient.replay import expect_logs, replay_step, send_logs
from cedar.trainers.resilient.schedule import Worker

if TYPE_CHECKING:
    from cedar.trainers.resilient.trainer import Trainer


def recover(trainer: Trainer, versions: dict[Worker, int], transport: Transport) -> None:
    """Every member of the generation calls it: some send what they have logged, some do steps again with that.

    Where something was not logged, everybody waits here until the lead lets all of them restore.

    Args:
        trainer: one worker, whose state is restored where its stage is lost.
        versions: how far everybody is; of lost stages, afterwards, too.
        transport: to the others.

    Raises:
        Superseded: a newer generation has begun.
    """
    job, epoch, waiting, me = trainer.job, trainer.epoch, trainer.waiting, trainer.me
    there = {worker: version for worker, version in versions.items() if worker.stage not in epoch.lost}
    until = min(there.values(), default=0)
    if me in there:
        trainer.board.put(keys.LOGS(epoch.number, me), trainer.history.told())
    names = sorted(there)
    wanted = [keys.LOGS(epoch.number, worker) for worker in names]
    logs = waiting.poll(partial(trainer.board.take_all, wanted), "the others' logs")
    told = dict(zip(names, logs, strict=True))
    every = [(replica, number) for replica in range(job.replicas) for number in range(job.micro_batches)]
    begin = {stage: min(v for w, v in versions.items() if w.stage == stage) for stage in epoch.lost}
    found = [
        find_sources(
            told, stage, range(begin[stage], until), stages=job.stages, keys=every, tied=job.tied,
            staggered=job.mode == "staggered",
        )
        for stage in epoch.lost
    ]  # fmt: skip
    sources = [one for one in found if one is not None]
    if len(sources) < len(found):
        trainer.board.report("unlogged", generation=epoch.number, worker=me)
        trainer.idle(waiting)
    send_logs(transport, me, trainer.schedule, sources, trainer.history)
    for one in sources:
        if one.stage == me.stage:
            _do_again(trainer, one, transport)
            trainer.board.report("replayed", generation=epoch.number, worker=me)
    versions |= {worker: until for worker in versions if worker.stage in epoch.lost}


def _do_again(trainer: Trainer, sources: Sources, transport: Transport) -> None:
    job, engine, me = trainer.job, trainer.engine, trainer.me
    expect_logs(transport, trainer.schedule, me, sources, engine)
    trainer.data = trainer.open()
    executor = trainer.executor_of(transport)
    for step in sources.steps:
        trainer.step = step
        engine.load(trainer.state)
        tell = partial(trainer.tell_again, step)
        kept, result = replay_step(executor, trainer.schedule, step, sources, tell)
        assert result.gradient is not None
        trainer.remember(step, kept, result.gradient)
        if me.stage == job.stages - 1 and step + 2 >= sources.steps.stop:  # those who died may not have said so
            trainer.tell_losses(result)
            trainer.board.first(keys.DONE(trainer.epoch.line, step), time.time())
        if step in sources.scales:
            scale = sources.scales[step]
            trainer.history.scaled(step, scale)
            trainer.state = trainer.optimizer.step(trainer.state, result.gradient, engine.layout, scale)
            trainer.pending = None
            trainer.commit(step)
        else:
            trainer.step_eagerly(result)
            trainer.commit(step - 1)
