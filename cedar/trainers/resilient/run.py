"""Supervise a run. The first supervisor also runs the store and the coordinator; those of other machines join."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from cedar.core.errors import CedarError
from cedar.trainers.common import links
from cedar.trainers.common.checkpoint import newest, read_index, say_damaged, set_aside, step_of, steps
from cedar.trainers.common.compute import device_of
from cedar.trainers.common.files import (
    CHECKPOINTS,
    METRICS,
    Damaged,
    MetricsFile,
    OnMetrics,
    check_folder,
    claim_folder,
    finite,
    replacing,
)  # fmt: skip
from cedar.trainers.common.run import print_lines, progress, say_none
from cedar.trainers.resilient.chaos import InjectedFault
from cedar.trainers.resilient.control import protocol as keys
from cedar.trainers.resilient.control import store
from cedar.trainers.resilient.control.board import Board
from cedar.trainers.resilient.control.lead import Coordinator, Event
from cedar.trainers.resilient.control.supervisor import Supervisor
from cedar.trainers.resilient.manager import Manager
from cedar.trainers.resilient.options import RunOptions
from cedar.trainers.resilient.pipeline import ResilientPipeline
from cedar.trainers.resilient.planning import Planning
from cedar.trainers.resilient.process import Setup, check_fork, preload, work
from cedar.trainers.resilient.windows import WINDOWS, forget_windows, newest_window, whole_windows

if TYPE_CHECKING:
    import torch

KEY = "run.key"  # file in the run's folder while the run is active; a machine must read it to join
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_RETRY_SECONDS = 0.5


@dataclass
class Record:
    """The results of a run."""

    # for each step its number, when it finished (``time.time()``), and its mean loss
    steps: list[tuple[int, float, float]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)  # failures, restores and joins
    # for each generation and worker, when each phase of recovery ended; the last phase ends at the first F or B
    recoveries: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    # injected failures and their times, by "worker/life"; life counts the worker's earlier processes
    mishaps: dict[str, tuple[str, float]] = field(default_factory=dict)
    # for each worker, a hash of its weights, and the peak bytes of its state and of its logs
    ended: dict[str, dict[str, Any]] = field(default_factory=dict)
    # seconds spent on precomputed plans, and the max number of failures that they cover
    plans: dict[str, float] = field(default_factory=dict)
    # seconds of a step without failures: simulated from measured instruction times, and measured
    step: dict[str, float] = field(default_factory=dict)
    # measured seconds of each kind of instruction at each stage, and of sending a message
    durations: dict[str, float] = field(default_factory=dict)

    def save(self, path: str) -> None:
        """Save the record as JSON, with null for numbers that are not finite."""
        with replacing(path) as file:
            file.write(json.dumps(finite(asdict(self)), indent=1, allow_nan=False).encode())


@dataclass(frozen=True)
class StepRecord:
    """A finished step, as in metrics.jsonl; steps that are redone after a restore appear again."""

    step: int  # from 0
    time: float  # when it finished, ``time.time()``
    loss: float  # mean over all micro-batches, in nats


class ProgressReader:
    """Reads the progress of a run from the store. ``micro_batches``: number per pipeline and step."""

    def __init__(self, board: Board, replicas: int, micro_batches: int) -> None:
        self.board, self.replicas, self.losses = board, replicas, replicas * micro_batches
        self.step, self.line = 0, 0
        self.steps: list[tuple[int, float, float]] = []

    def read(self, coordinator: Coordinator, metrics: MetricsFile) -> None:
        """Read the steps that have been done since the last call."""
        if coordinator.line != self.line:
            self.line = coordinator.line
            self.step = step_of(coordinator.events[-1].why) if coordinator.events else 0
        while (when := self.board.get(keys.DONE(self.line, self.step))) is not None:
            # in staggered mode, one replica may finish a step before another has published its losses of it
            final = coordinator.over or self.board.get(keys.DONE(self.line, self.step + 1)) is not None
            names = [keys.LOSS(self.line, self.step, replica) for replica in range(self.replicas)]
            reported = [one for one in map(self.board.get, names) if one is not None]
            # a micro-batch has two entries if its worker died and another one repeated it
            losses = {(replica, number): loss for one in reported for replica, number, loss in one}
            if len(losses) < self.losses and not final:
                return
            mean = sum(losses[key] for key in sorted(losses)) / len(losses) if losses else float("nan")
            self.board.delete(*names, keys.DONE(self.line, self.step - 1))  # all workers are past that step
            self.steps.append((self.step, when, mean))
            metrics.write(StepRecord(*self.steps[-1]))
            self.step += 1


def lead(
    pipeline: ResilientPipeline, *, mishaps: Sequence[InjectedFault] = (), resume: bool = False, quiet: bool = False,
    on_metrics: OnMetrics | None = None,
) -> Record:  # fmt: skip
    """Supervise this machine's workers, and run the store and the coordinator.

    Args:
        pipeline: the model, its data and all settings.
        resume: start from the newest checkpoint in the folder.
        on_metrics: called with each record that is written to metrics.jsonl.
    """
    run, group, stages = pipeline.run, pipeline.group, len(pipeline.stages)
    folder, listen = os.path.join(run.folder, CHECKPOINTS), group.listen
    assert pipeline.rows > 0
    assert pipeline.shared is not None
    device = device_of(run.device)
    check_fork(device)
    check_folder(run.folder, "resilient", resume=resume)
    windows = os.path.join(run.folder, WINDOWS)
    initial_checkpoint = find_checkpoint(folder, windows, run.steps) if resume else ""
    forget_windows(windows, initial_checkpoint)
    name = f"{os.uname().nodename}-{os.getpid()}"
    setup = Setup(pipeline, *listen, name, mishaps=mishaps, lanes=_saved_lanes(initial_checkpoint))
    plans, how = os.path.join(run.folder, "plans"), pipeline.pipeline
    planning = Planning(
        pipeline.problem, plans, run.steps, calibrate=how.calibrate, schedule=how.schedule, exact=how.exact
    )
    preload()
    key = secrets.token_bytes(links.KEY)
    process, port = store.start(*listen, key)
    supervisor = None
    try:
        links.write_key(os.path.join(run.folder, KEY), key)
        setup = replace(setup, port=port, key=key)
        board = Board(store.connect(listen[0], port, key))
        board.put(keys.SETUP(), pipeline.description | {"lanes": setup.lanes})
        planning.publish(board)
        board.put(keys.STORE(), process.pid)
        if group.machines > 1:
            local = "" if listen[0] not in _LOOPBACK else " from this machine only; for others, give --listen HOST:PORT"
            print_lines([f"workers can join at {listen[0]}:{port}{local}"])
        if not quiet:
            print_lines([say_none(run.folder)] if resume and not initial_checkpoint else [])
            _print_settings(pipeline, planning, device, initial_checkpoint)
        supervisor = Supervisor(setup.machine, board, stages * group.replicas, run.heartbeat, partial(work, setup))
        coordinator = Coordinator(
            board, stages, group.replicas, machines=group.machines, latest=partial(_latest, folder, windows, run.steps),
            initial_checkpoint=initial_checkpoint, silence=run.silence,
            can_replay_alone=partial(_can_replay_alone, pipeline),
        )  # fmt: skip
        return _supervise(setup, board, supervisor, coordinator, planning, quiet=quiet, on_metrics=on_metrics)
    except store.StoreLost as error:
        raise _store_lost_error(error) from error
    finally:
        planning.stop()
        if supervisor is not None:
            supervisor.stop()
        process.kill()
        process.join()
        with suppress(OSError):
            os.unlink(os.path.join(run.folder, KEY))


def _print_settings(
    pipeline: ResilientPipeline, planning: Planning, device: torch.device, initial_checkpoint: str
) -> None:
    run, how, group = pipeline.run, pipeline.pipeline, pipeline.group
    threads = f"{run.threads} threads of torch on {device} ({run.device}, as asked), {run.dtype}"
    cut = f"{group.replicas} x {how.micro_batches} micro-batches of {pipeline.rows} rows"
    begun = f"steps: {step_of(initial_checkpoint)} to {run.steps}"
    print_lines([f"{begun}; {len(pipeline.stages)} stages of {group.replicas} workers, each with {threads}"])
    memory = pipeline.memory
    fit = f", that is {', '.join(map(str, memory))} by stage" if isinstance(memory, tuple) else ""
    print_lines([f"a step: {cut}, {how.reduction}, activations: {how.memory}{fit}"])
    print_lines([f"stages step: {pipeline.mode[0]} ({pipeline.mode[1]})"])
    shortest = sum(planned.optimal for planned in planning.plans.values())
    by = f"CP-SAT, {how.exact:g} s each" if how.exact else "list scheduling"
    print_lines([f"plans ahead: {len(planning.plans)}, by {by}; {shortest} proven to be the shortest"])
    print_lines([f"folder: {run.folder}"])


def _supervise(
    setup: Setup, board: Board, supervisor: Supervisor, coordinator: Coordinator, planning: Planning, *, quiet: bool,
    on_metrics: OnMetrics | None,
) -> Record:  # fmt: skip
    run, replicas = setup.pipeline.run, setup.pipeline.group.replicas
    reader = ProgressReader(board, replicas, setup.pipeline.pipeline.micro_batches)
    connect = partial(store.connect, setup.host, setup.port, setup.key)
    manager = Manager(setup.pipeline.pipeline.moves, board, coordinator, planning, connect)
    rejoins = sorted(mishap.step for mishap in setup.mishaps if mishap.kind == "rejoin")
    reported = shown = 0

    def tick_all() -> None:
        supervisor.tick()
        coordinator.tick(supervisor.clock.now, reader.step)
        supervisor.announce(coordinator.generation)

    deadline = supervisor.clock.now + run.patience
    while not coordinator.generation:
        tick_all()
        if not coordinator.places_assigned and supervisor.clock.now > deadline:
            joined = f"{len(coordinator.machines)} of {coordinator.expected} machines"
            raise CedarError(
                f"{joined} joined within {run.patience:g} s", done="nothing was trained",
                fix="start the others with --join HOST:PORT, set --machines to a smaller number, or raise run.patience",
            )  # fmt: skip
        supervisor.pause()
    claim_folder(run.folder, "resilient")  # only now, so that a failed start can be retried
    metrics = MetricsFile(os.path.join(run.folder, METRICS), step_of(coordinator.initial_checkpoint), on_metrics)
    with progress("resilient", run.steps, quiet=quiet) as show_progress:
        while not coordinator.over:
            tick_all()
            reader.read(coordinator, metrics)
            manager.check(reader.steps)
            if rejoins and reader.step >= rejoins[0]:
                coordinator.fill(setup.machine)
                rejoins.pop(0)
            if reader.steps and reader.step > shown:
                shown = reader.step
                show_progress(shown, f"loss {reader.steps[-1][2]:.3f}, {len(coordinator.members)} workers")
            for event in coordinator.events[reported:]:
                reported += 1
                if not quiet and event.what != "start":
                    subject = "" if event.worker is None else f" of {event.worker}"
                    print_lines([f"generation {event.generation}: {event.what}{subject} {event.why}"])
            supervisor.pause()
    reader.read(coordinator, metrics)
    notify_supervisors(board, coordinator, supervisor)
    return _record(board, coordinator, reader, setup, manager)


def notify_supervisors(board: Board, coordinator: Coordinator, supervisor: Supervisor) -> None:
    """Notify the other supervisors that the run is over. Wait for them, since the store ends with this process."""
    board.put(keys.OVER(), True)
    while any(name != supervisor.name and not board.increment(keys.LEFT(name), 0) for name in coordinator.machines):
        supervisor.tick()
        coordinator.listen(supervisor.clock.now)  # drops supervisors that have been silent for too long
        supervisor.pause()


def _record(board: Board, coordinator: Coordinator, reader: ProgressReader, setup: Setup, manager: Manager) -> Record:
    record = Record(reader.steps, coordinator.events, **manager.describe())
    for generation in range(1, coordinator.generation + 1):
        timings = {str(w): board.get(keys.RECOVERY(generation, w)) for w in board.epoch(generation).members}
        record.recoveries[str(generation)] = {worker: times for worker, times in timings.items() if times}
    for number in range(coordinator.stages * coordinator.replicas):
        for life in range(len(setup.mishaps) + 1):
            happened = board.get(keys.MISHAP(number, life))
            if happened is not None:
                record.mishaps[f"{number}/{life}"] = (happened[0], happened[1])
    record.ended = {
        str(worker): {name: reported[name] for name in ("digest", "peak", "logs")}
        for worker, reported in coordinator.ended.items()
    }
    return record


def join(pipeline: ResilientPipeline, host: str, port: int) -> None:
    """Supervise this machine's workers in a run that another machine leads, until the run ends. The other machine may
    start up to ``run.patience`` seconds later.
    """
    preload()
    check_fork(device_of(pipeline.run.device))
    store.check_port(port)
    try:
        key, board, reported = _find_run(pipeline.run, host, port)
        name = f"{os.uname().nodename}-{os.getpid()}"
        lanes = reported.pop("lanes", 0)
        if reported != pipeline.description:
            raise CedarError("the run has a different configuration", fix="join with the same file and settings")
        setup = Setup(pipeline, host, port, name, key, lanes=lanes)
        rows = len(pipeline.stages) * pipeline.group.replicas
        supervisor = Supervisor(name, board, rows, pipeline.run.heartbeat, partial(work, setup))
        print_lines([f"joined the run at {host}:{port}"])
        try:
            while not board.get(keys.OVER()):
                supervisor.tick()
                supervisor.pause()
        finally:
            supervisor.stop()
        board.increment(keys.LEFT(supervisor.name))
    except store.StoreLost as error:
        raise _store_lost_error(error) from error


def _find_run(run: RunOptions, host: str, port: int) -> tuple[bytes, Board, dict[str, Any]]:
    """Return a run's key, store and settings. Retry, since the run may begin later, and replace an old key."""
    deadline, waiting = time.monotonic() + run.patience, False
    while True:
        try:
            key = links.read_key(os.path.join(run.folder, KEY))
            board = Board(store.connect(host, port, key))
            if (reported := board.get(keys.SETUP())) is not None:
                return key, board, reported
            raise CedarError(f"no run is registered in the store at {host}:{port}", fix="give the address of a run")
        except (CedarError, store.StoreLost) as error:
            if time.monotonic() > deadline:
                raise
            if not waiting:
                waiting = True
                print_lines([f"waiting up to {run.patience:g} s for the run at {host}:{port}: {error}"])
        time.sleep(_RETRY_SECONDS)


def _latest(folder: str, windows: str, until: int, *, thorough: bool = False) -> str:
    """Return the path of the checkpoint or window with the latest step; empty if there is none."""
    found = [newest(folder, thorough=thorough), newest_window(windows, until, thorough=thorough)]
    return max(filter(None, found), key=step_of, default="")


def find_checkpoint(folder: str, windows: str, until: int) -> str:
    """Return the path of the newest intact checkpoint or window, for a run to resume from; empty if nothing was saved.
    Damaged checkpoints from its step on are renamed.

    Raises:
        Damaged: there are checkpoints or windows, but none is intact, or a file is ``Unreadable``.
    """
    damaged: list[Damaged] = []
    whole = whole_windows(windows, damaged.append)
    for error in damaged:
        say_damaged(error)
    found = _latest(folder, windows, until, thorough=True)
    if not found and (steps(folder) or damaged or min(whole.values(), default=until + 1) <= until):
        raise Damaged(
            f"all checkpoints in {os.path.dirname(folder)} are damaged", done="nothing was changed",
            fix="restore one from a backup, or set run.folder to another folder to start from step 0",
        )  # fmt: skip
    set_aside(folder, step_of(found) - (os.path.dirname(found) == windows))
    return found


def _saved_lanes(checkpoint: str) -> int:
    """Return the number of loader ranks in the run that saved a checkpoint; it determines the rows of each step."""
    loader = read_index(checkpoint).state.get("loader") if checkpoint else None
    return int(loader.get("world", 0)) if isinstance(loader, dict) else 0


def _can_replay_alone(pipeline: ResilientPipeline, lost: set[int]) -> bool:
    """Whether other stages have logged all that these need to redo steps: neighbors, and one that shares weights."""
    needed, tied = {stage + side for stage in lost for side in (-1, 1)}, set(pipeline.shared.stages)
    known = not tied & lost or bool(tied - lost)
    return pipeline.replays and len(lost) < len(pipeline.stages) and known and not needed & lost


def _store_lost_error(error: BaseException) -> CedarError:
    return CedarError(
        f"the run's store is gone: {error}",
        done="the workers of this machine were stopped; checkpoints were not changed",
        fix="start again with --resume",
    )
