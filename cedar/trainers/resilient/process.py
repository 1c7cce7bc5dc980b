"""What a worker's process does."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cedar.errors import CedarError
from cedar.trainers.common import launch
from cedar.trainers.resilient.chaos import Fate, Mishap, happen
from cedar.trainers.resilient.control import store
from cedar.trainers.resilient.control.beats import Beats
from cedar.trainers.resilient.control.board import Board, Epoch
from cedar.trainers.resilient.options import Options
from cedar.trainers.resilient.schedule import Instruction, Worker, pairs

_BEAT = 0.05
# imported at the first batch and the first backward: a second of each worker's start; not polars, which starts threads
_LATER = ("cedar.pipeline.sources", "pandas", "torch.fx.experimental.symbolic_shapes")


@dataclass(frozen=True)
class Setup:
    """What a worker needs to know before it can ask.

    Args:
        options: of the run.
        stages: of the grid.
        replicas: of each stage.
        host: of the store.
        port: of the store.
        machine: the supervisor's name.
        key: of the run: who holds it may talk to the store and to workers.
        mishaps: failures on purpose.
    """

    options: Options
    stages: int
    replicas: int
    host: str
    port: int
    machine: str
    key: bytes = field(default=b"", repr=False)
    mishaps: Sequence[Mishap] = ()

    @property
    def rows(self) -> int:
        """Of a micro-batch.

        Raises:
            CedarError: the batch, or the layers, cannot be cut so.
        """
        data, pipeline = self.options.data, self.options.pipeline
        count = self.replicas * pipeline.micro_batches
        if data.batch < 1 or data.batch % count:
            raise CedarError(
                f"a batch of {data.batch} rows cannot be cut into"
                f" {self.replicas} x {pipeline.micro_batches} micro-batches",
                fix=f"set data.batch to a multiple of {count}",
            )
        if self.stages < 1 or self.replicas < 1 or self.options.model.layers < self.stages:
            raise CedarError(
                f"{self.options.model.layers} layers cannot be cut into"
                f" {self.stages} stages of {self.replicas} replicas",
                fix="give each stage a layer or more",
            )
        return data.batch // count


def preload() -> None:
    """Import what workers need, so that they are there at once when they are forked."""
    for name in ("checkpoint", "data", "executor.sockets", "model", "trainer"):
        importlib.import_module(f"cedar.trainers.resilient.{name}")
    for name in _LATER:
        with suppress(ImportError):  # pandas need not be there
            importlib.import_module(name)


def work(setup: Setup, me: Worker, life: int, row: int, beats: Beats) -> None:
    """Train as one worker; ends the process."""
    code = 1
    parent = _supervisor()
    launch.end_with(parent, look=False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
    threading.Thread(target=_beat, args=(beats, row, parent), name="heartbeat", daemon=True).start()
    board = None
    try:
        board = Board(store.connect(setup.host, setup.port, setup.key))
        _train(setup, me, life, row, beats, board)
        code = 0
    except BaseException as error:  # noqa: BLE001 - the process ends here, and must say why
        told = str(error) if isinstance(error, CedarError) else "".join(traceback.format_exception(error))
        sys.stderr.write(f"worker {me}: {told}\n")
        with suppress(RuntimeError):  # the store may be what is gone
            if board is not None:
                board.report("error", worker=me, error=f"{type(error).__name__}: {error}")
    finally:
        sys.stderr.flush()
        os._exit(code)  # threads that wait in the network for the dead are left behind


def _supervisor() -> int:
    """The process that forked this one; also where that has died since."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "workers are forked by a supervisor"
    assert parent.pid is not None, "workers are forked by a supervisor"
    return parent.pid


def _beat(beats: Beats, row: int, parent: int) -> None:
    while os.getppid() == parent:
        beats.beat(row)
        time.sleep(_BEAT)
    os.kill(os.getpid(), signal.SIGKILL)


def _train(setup: Setup, me: Worker, life: int, row: int, beats: Beats, board: Board) -> None:
    import torch

    from cedar.trainers.resilient.checkpoint import Checkpoints
    from cedar.trainers.resilient.data import TextBatches
    from cedar.trainers.resilient.executor import Waiting
    from cedar.trainers.resilient.executor.sockets import SocketTransport
    from cedar.trainers.resilient.job import Job, Left
    from cedar.trainers.resilient.model import AdamW, Engine, Stage, Transformer
    from cedar.trainers.resilient.trainer import Trainer, digest

    options, run = setup.options, setup.options.run
    torch.set_num_threads(run.threads)
    model = Transformer(
        256, options.data.length, options.model.layers, options.model.width, options.model.heads,
        options.model.dropout, options.model.tied,
    )  # fmt: skip
    pipeline = options.pipeline
    job = Job(
        setup.stages, setup.replicas, pipeline.micro_batches, setup.rows, run.steps, pipeline.mode, pipeline.reduction,
        pipeline.cap, options.model.tied, pipeline.logs, options.replays, run.patience, run.pace,
    )  # fmt: skip
    engine = Engine(
        Stage(model, me.stage, setup.stages, run.seed), seed=run.seed, dtype=getattr(torch, run.dtype),
        share=1 / (setup.replicas * pipeline.micro_batches),
    )  # fmt: skip
    optimizer = AdamW(
        partial(options.optimizer.rate_at, steps=run.steps), (options.optimizer.betas[0], options.optimizer.betas[1]),
        options.optimizer.eps, options.optimizer.decay, options.optimizer.clip,
    )  # fmt: skip

    def connect(epoch: Epoch, waiting: Waiting) -> SocketTransport:
        client = store.connect(setup.host, setup.port, setup.key)  # its own: threads ask it
        transport = SocketTransport(
            Board(client), client.host, setup.key, epoch.members, me, waiting, f"listens/{epoch.number}"
        )
        if epoch.number == 1:  # connections are made by their first use
            near = [b for a, b in pairs(setup.stages, setup.replicas, job.tied) if a == me and b in epoch.members]
            transport.warm_up(near)
        return transport

    def opened() -> TextBatches:
        """The data anew: after a restore, steps that were committed are read again."""
        return TextBatches(
            options.data.paths, options.data.length, setup.replicas, pipeline.micro_batches, setup.rows, run.seed
        )

    data = opened()
    about = {"loader": data.state_dict(), "stages": setup.stages, "replicas": setup.replicas}
    data.close()
    saver = Checkpoints(
        os.path.join(run.folder, "checkpoints"), me, engine.layout, board, every=run.save_every, keep=run.keep,
        about=about,
    )  # fmt: skip
    trainer = Trainer(
        me, job, engine, optimizer, board, newest=lambda: beats.generation, connect=connect,
        data=opened, saver=saver,
        progress=_progress(setup, me, life, row, beats, board), since=board.generation(),
    )  # fmt: skip
    board.report("ready", worker=me, machine=setup.machine)
    try:
        state = trainer.train()
    except Left:
        return
    board.report("ended", worker=me, digest=digest(state), peak=trainer.peak, logs=trainer.logged)


def _progress(setup: Setup, me: Worker, life: int, row: int, beats: Beats, board: Board) -> Any:
    number = me.stage * setup.replicas + me.replica
    fate = Fate(setup.mishaps, number, life)

    def progress(step: int, at: int, done: Instruction, waiting_for: Worker | None) -> None:
        mishap = fate.due(step, at)
        if mishap is not None:
            beats.move(row, step, at, Instruction("F"), None)
            board.put(f"mishap/{number}/{life}", [mishap.what, time.time()])
            happen(mishap)
        fate.pause(step, waits=waiting_for is not None or done.kind == "ALL_REDUCE")
        beats.move(row, step, at, done, waiting_for)

    return progress
