"""What a worker process runs, from connecting to the store to its end."""

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
from typing import TYPE_CHECKING, Any

import torch

from cedar.core.errors import CedarError
from cedar.trainers.common import launch
from cedar.trainers.common.compute import ask_fork, device_of
from cedar.trainers.common.files import CHECKPOINTS
from cedar.trainers.resilient.chaos import InjectedFault, ScheduledFaults, inject
from cedar.trainers.resilient.control import protocol as keys
from cedar.trainers.resilient.control import store
from cedar.trainers.resilient.control.beats import HeartbeatBoard
from cedar.trainers.resilient.control.board import Board, Epoch
from cedar.trainers.resilient.data import FinalError
from cedar.trainers.resilient.schedule import Instruction, Worker, pairs

if TYPE_CHECKING:
    from cedar.trainers.resilient.model import Engine
    from cedar.trainers.resilient.pipeline import ResilientPipeline

_HEARTBEAT_INTERVAL = 0.05
# Needed by the first batch and backward: importing them before the fork saves a second per worker. No polars: threads.
_LAZY_IMPORTS = ("cedar.pipeline.sources", "pandas", "torch.fx.experimental.symbolic_shapes")


@dataclass(frozen=True)
class Setup:
    """What a worker needs to train, and to connect to the run's store."""

    pipeline: ResilientPipeline  # the model, its data and all settings
    host: str
    port: int
    machine: str
    key: bytes = field(default=b"", repr=False)  # the run's key, which clients of the store and of workers must present
    mishaps: Sequence[InjectedFault] = ()
    lanes: int = 0  # number of loader ranks in the resumed run; 0: not resumed, or no loader


def preload() -> None:
    """Import the modules that workers need, so that forked workers need not import them."""
    for name in ("checkpoint", "data", "executor.network", "model", "trainer"):
        importlib.import_module(f"cedar.trainers.resilient.{name}")
    for name in _LAZY_IMPORTS:
        with suppress(ImportError):  # pandas is optional
            importlib.import_module(name)


def check_fork(device: torch.device) -> None:
    """Check that workers forked by this process can train on the device.

    Raises:
        CedarError: this process has already used CUDA, or torch rejects backward passes in forked processes.
    """
    if not ask_fork(_differentiate):
        raise CedarError(
            "torch rejects backward passes in the workers that this process forks, maybe because it used torch.compile",
            done="nothing was started", fix="call train() or join() in a new process",
        )  # fmt: skip
    if device.type == "cpu":
        return
    if torch.cuda.is_initialized() or ask_fork(torch.cuda._is_in_bad_fork):  # type: ignore[no-untyped-call]
        raise CedarError(
            "this process has used CUDA, so the workers that it forks cannot", done="nothing was started",
            fix="before train() or join(), call neither torch.cuda nor an optimizer of torch; leave stages on the CPU",
        )  # fmt: skip


def _differentiate() -> int:
    x = torch.ones(1, requires_grad=True)
    return len(torch.autograd.grad(x.sum(), x))


def local_gpu(device: torch.device, number: int, gpus: int) -> torch.device:
    """Return a worker's GPU. The machine's GPUs are assigned to its workers in turn, unless ``run.device`` names one.

    Args:
        device: the device that ``run.device`` names.
        number: the worker's index on its machine.
        gpus: number of GPUs in this machine.

    Examples:
        >>> [str(local_gpu(torch.device("cuda"), number, 2)) for number in range(4)]
        ['cuda:0', 'cuda:1', 'cuda:0', 'cuda:1']
    """
    return device if device.index is not None else torch.device("cuda", number % gpus)


def work(setup: Setup, me: Worker, life: int, row: int, beats: HeartbeatBoard) -> None:
    """Train as one worker, then end the process."""
    code = 1
    parent = _supervisor()
    launch.end_with(parent, look=False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
    threading.Thread(target=_send_heartbeats, args=(beats, row, parent), name="heartbeat", daemon=True).start()
    board = None
    try:
        board = Board(store.connect(setup.host, setup.port, setup.key))
        _train(setup, me, life, row, beats, board)
        code = 0
    except FinalError as error:
        with suppress(store.StoreLost):
            if board is not None:
                board.report("wrong", problem=error.what, fix=error.fix)  # the coordinator stops the run
    except BaseException as error:  # noqa: BLE001 - the process ends here, so it must report why
        reported = str(error) if isinstance(error, CedarError) else "".join(traceback.format_exception(error))
        sys.stderr.write(f"worker {me}: {reported}\n")
        with suppress(store.StoreLost):  # the store may be gone
            if board is not None:
                board.report("error", worker=me, error=f"{type(error).__name__}: {error}")
    finally:
        sys.stderr.flush()
        os._exit(code)  # do not wait for threads that may be blocked on dead workers


def _supervisor() -> int:
    """Return the process id of the supervisor that forked this process. It stays the same if the supervisor dies."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "workers are forked by a supervisor"
    assert parent.pid is not None, "workers are forked by a supervisor"
    return parent.pid


def _send_heartbeats(beats: HeartbeatBoard, row: int, parent: int) -> None:
    while os.getppid() == parent:
        beats.beat(row)
        time.sleep(_HEARTBEAT_INTERVAL)
    os.kill(os.getpid(), signal.SIGKILL)


def _train(setup: Setup, me: Worker, life: int, row: int, beats: HeartbeatBoard, board: Board) -> None:
    from cedar.trainers.resilient.checkpoint import Checkpoints
    from cedar.trainers.resilient.executor import Waiting
    from cedar.trainers.resilient.executor.network import SocketTransport
    from cedar.trainers.resilient.member import MovedAway, digest
    from cedar.trainers.resilient.trainer import Trainer
    from cedar.trainers.resilient.windows import WINDOWS, SparseCheckpoints

    pipeline, job, run = setup.pipeline, setup.pipeline.job, setup.pipeline.run
    torch.set_num_threads(run.threads)
    device = device_of(run.device)
    if device.type == "cuda":
        device = local_gpu(device, row, torch.cuda.device_count())
        torch.cuda.set_device(device)
    engine = pipeline.engine(me.stage, device)

    def connect(epoch: Epoch, waiting: Waiting) -> SocketTransport:
        client = store.connect(setup.host, setup.port, setup.key)  # a separate connection for other threads
        transport = SocketTransport(Board(client), client.host, setup.key, epoch.members, me, waiting, epoch.number)
        if epoch.number == 1:  # open all connections before the first step
            neighbors = [b for a, b in pairs(job.stages, job.replicas, job.tied) if a == me and b in epoch.members]
            transport.warm_up(neighbors)
        return transport

    data = pipeline.open(setup.lanes)
    about = {"loader": data.source.state_dict(), "stages": job.stages, "replicas": job.replicas}
    data.close()
    _find_signatures(pipeline, engine, me, board)
    saver = Checkpoints(
        os.path.join(run.folder, CHECKPOINTS), me, engine.layout, board, every=run.save_every, keep=run.keep,
        about=about, shared_elsewhere=me.stage != min(job.tied, default=me.stage),
    )  # fmt: skip
    windows = SparseCheckpoints(
        os.path.join(run.folder, WINDOWS), me, engine.layout, board, engine=engine, window=run.sparse_window,
        stages=job.stages, keep=run.keep, about=about, shared_elsewhere=saver.shared_elsewhere,
    )  # fmt: skip
    trainer = Trainer(
        me, job, engine, pipeline.rule, board, newest=lambda: beats.generation, connect=connect,
        data=partial(pipeline.open, setup.lanes), saver=saver, windows=windows,
        progress=_make_progress(setup, me, life, row, beats, board), since=board.generation(),
    )  # fmt: skip
    board.report("ready", worker=me, machine=setup.machine)
    try:
        state = trainer.train()
    except MovedAway:
        return
    board.report("ended", worker=me, digest=digest(state), peak=trainer.peak, logs=trainer.logged)


def _find_signatures(pipeline: ResilientPipeline, engine: Engine, me: Worker, board: Board) -> None:
    """Find the shapes and dtypes of messages. The first worker of each stage reports them to the next stage."""
    from cedar.trainers.resilient.executor import Waiting
    from cedar.trainers.resilient.model import Signature

    def read_boundary(boundary: int) -> Signature | None:
        reported = board.get(keys.BOUNDARY(boundary))
        return None if reported is None else Signature(tuple(reported[0]), getattr(torch, reported[1]))

    waiting = Waiting(0, lambda: 0, pipeline.run.patience)
    if not engine.first:
        engine.inputs = waiting.poll(
            lambda: read_boundary(me.stage - 1), f"the output signature of stage {me.stage - 1}"
        )
    engine.outputs = None if engine.last else read_boundary(me.stage)
    if engine.outputs is None and not engine.last:
        data = pipeline.open()
        engine.find_signatures(
            data.inputs(0, (0, 0)) if engine.inputs is None else torch.zeros(engine.inputs[0], dtype=engine.inputs[1])
        )
        data.close()
        assert engine.outputs is not None
        board.put(keys.BOUNDARY(me.stage), [engine.outputs.shape, str(engine.outputs.dtype).removeprefix("torch.")])


def _make_progress(setup: Setup, me: Worker, life: int, row: int, beats: HeartbeatBoard, board: Board) -> Any:
    number = me.stage * setup.pipeline.group.replicas + me.replica
    faults = ScheduledFaults(setup.mishaps, number, life)

    def progress(step: int, at: int, done: Instruction, waiting_for: Worker | None) -> None:
        fault = faults.due(step, at)
        if fault is not None:
            beats.begin_instruction(row, step, at, Instruction("F"), None)
            board.put(keys.MISHAP(number, life), [fault.kind, time.time()])
            inject(fault)
        faults.pause(step, waits=waiting_for is not None or done.kind == "ALL_REDUCE")
        beats.begin_instruction(row, step, at, done, waiting_for)

    return progress
