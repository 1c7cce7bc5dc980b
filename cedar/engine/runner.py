"""Runner: submit tasks to an executor, and decide how many to keep in flight."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from cedar.control.timeline import Part
from cedar.core.errors import WorkerError
from cedar.core.request_owner import Stop, StopScope
from cedar.core.stream import Rows
from cedar.datasets.base import Split
from cedar.engine.memory import MemoryBound
from cedar.engine.rendezvous import PATIENCE
from cedar.executors.choose import (
    InlineExecutor,
    available_cpus,
    check_executor,
    executor_after_fork,
    names_cluster,
    open_executor,
    own_threads,
)
from cedar.executors.recovery import (
    Deaths,
    Patience,
    Recovery,
    Submit,
    TaskWork,
    block_daemon_at_exit,
    refused,
    time_limits,
)
from cedar.executors.recovery.patience import StallTimer
from cedar.executors.recovery.trial import read_trial_task, run_trial_task, tried
from cedar.executors.recovery.waiting import LocalTasks, RunningTask, Waiting
from cedar.operators.base import Env
from cedar.operators.marks import Marks
from cedar.tasks.chain import Program, Result, Timing, run_block
from cedar.tasks.code import Code
from cedar.tasks.reading import Hand, read_split
from cedar.tasks.shipped import Gathering, read_shipped, run_shipped

GATHER: Part = ("gather", ())
_AHEAD_BYTES = 128 << 20  # limit on bytes of results in flight in this process, with at least two tasks per core
_MAX_LOCAL_THREADS = 32  # threads of this process when tasks run on a cluster
_RUN_NOW = InlineExecutor()
_MIN_RECORDED = 64  # number of recorded results before collected ones are removed
T = TypeVar("T")


class Arrivals:
    """Notifies one waiting thread when any of several futures is done.

    Examples:
        >>> arrivals, read = Arrivals(), Future()
        >>> another = arrivals.another()
        >>> arrivals.notes(read).set_result(None)
        >>> another.done()
        True
    """

    def __init__(self) -> None:
        self._another: Future[None] = Future()

    def notes(self, future: Future[T]) -> Future[T]:
        """Add a future to wait for."""
        future.add_done_callback(self._done)
        return future

    def another(self) -> Future[None]:
        """Return a future that is done when the next of the added futures is; for one waiting thread only."""
        if self._another.done():
            self._another = Future()
        return self._another

    def _done(self, _: Future[Any]) -> None:
        with suppress(InvalidStateError):  # another thread has just set it
            self._another.set_result(None)


class UntakenResults(Arrivals):
    """Results of finished tasks that no code has taken yet.

    Examples:
        >>> untaken, done = UntakenResults(), Future()
        >>> untaken.add(done).set_result(Result([], Timing()))
        >>> untaken.nbytes()
        0
    """

    def __init__(self) -> None:
        self._futures: list[weakref.ref[Future[Any]]] = []
        self._prune_at = _MIN_RECORDED
        super().__init__()

    def add(self, future: Future[T]) -> Future[T]:
        """Record a future whose result will be taken; taking it also releases it."""
        self.notes(future)
        self._futures.append(weakref.ref(future))
        if len(self._futures) > self._prune_at:
            self._futures = [each for each in self._futures if each() is not None]
            self._prune_at = 2 * len(self._futures) + _MIN_RECORDED
        return future

    def nbytes(self) -> int:
        """Return the bytes of the recorded results; thread-safe."""
        size = 0
        for each in self._futures:
            future = each()
            if future is not None and future.done() and not future.cancelled() and future.exception() is None:
                size += sum(block.nbytes for block in getattr(future.result(), "blocks", ()))
        return size


class Runner:
    """Runs the tasks of one epoch; closed with it.

    Args:
        executor: a name, or any ``concurrent.futures.Executor``, which is not shut down here.
        workers: number of concurrent tasks; None uses the number of cores.
        deaths: where the deaths of workers are recorded.
        patience: how long to wait for tasks that make no progress.
        watched: warn the caller, which iterates, if a task in its own thread makes no progress.
        untaken: records results until they are taken; None records nothing.
        reads: notifies when a split was read; None creates one.
        alone: no task may wait behind another task while a worker is idle.
        bound: says how far to read ahead under a memory budget.
    """

    def __init__(
        self,
        executor: str | Executor,
        workers: int | None,
        deaths: Deaths | None = None,
        patience: Patience | None = None,
        watched: bool = False,
        untaken: UntakenResults | None = None,
        reads: Arrivals | None = None,
        bound: MemoryBound | None = None,
        alone: bool = False,
    ) -> None:
        self.untaken, self.bound, self.alone = untaken, bound, alone
        self.reads = reads or Arrivals()
        self._cluster = names_cluster(executor)  # a cluster's size is not controlled here
        self.owned = isinstance(executor, str) or self._cluster
        name = "threads" if executor == "auto" else executor
        self.name = "dask" if self._cluster else name if isinstance(name, str) else type(executor).__name__
        self.cores = available_cpus()
        self.deaths = deaths or Deaths()
        self.patience = patience = patience or Patience()
        self.executor = self._open(name, workers or (None if self._cluster else self.cores))
        given = getattr(self.executor, "_max_workers", None)
        self.workers = 1 if name == "inline" else workers or given or self.cores
        self.inline = isinstance(self.executor, InlineExecutor)
        # Threads share memory with this process; other executors get pickled code and gathered blocks.
        self.local = self.inline or isinstance(self.executor, ThreadPoolExecutor)
        self._ahead = 1 if self.inline else 2 * self.workers
        self.others: Runners | None = None  # runners of other places that a plan may use
        # For work that stays in this process; a thread pool starts threads only when needed.
        self._here = self.executor if self.local else own_threads(min(self.workers, _MAX_LOCAL_THREADS))
        self._old_executors: list[Executor] = []  # executors of earlier sizes, which finish their tasks
        self._recovery = Recovery(lambda: self.executor, self.deaths, self.name == "processes", patience)
        self._stop = Stop()
        _stops.add(self._stop)
        self._running = LocalTasks(patience, _describe_call)
        self._waiting = Waiting(patience, self._progress, self._at_work, lambda: not self.local)
        self._watches = watched and self.inline and patience.timeout is None
        if self.inline and patience.timeout is not None:  # a hanging pool thread can be abandoned, the caller's cannot
            self.executor = self._here = ThreadPoolExecutor(1, thread_name_prefix="cedar-inline")
        self._shipped: dict[tuple[int, ...], Code] = {}
        self._kept: list[Any] = []  # keeps shipped code alive, so that its id is not reused

    def _open(self, executor: str | Executor, workers: int | None) -> Executor:
        opened: Any = open_executor(executor, workers, self.patience.timeout or PATIENCE)
        if self.alone and hasattr(opened, "alone"):
            opened.alone = True
        return opened  # type: ignore[no-any-return]

    def resize(self, workers: int, ahead: int | None = None) -> bool:
        """Change the number of concurrent tasks; submitted tasks continue. False if the executor's size is fixed.

        Args:
            workers: threads or processes; above 0.
            ahead: tasks to keep in flight; None means twice the workers.

        Must be called by the thread that submits.
        """
        if not self.owned or self.inline or self._cluster:
            return False
        if workers != self.workers:
            self._old_executors.append(self.executor)
            self.workers, self.executor = workers, self._open(self.name, workers)
            self._old_executors[-1].shutdown(wait=False)
        self._here = self.executor if self.local else self._here
        self._ahead = ahead or 2 * workers
        return True

    @property
    def lanes(self) -> int:
        """Number of tasks that can run at once, here and in the other places of the run."""
        return self.workers if self.others is None else sum(runner.workers for runner in self.others)

    @property
    def ahead(self) -> int:
        """Tasks to keep in flight; on a cluster the number follows its size."""
        return getattr(self.executor, "ahead", 0) or self._ahead

    def ahead_of(self, size: int) -> int:
        """Return how many tasks with results of ``size`` bytes to keep in flight, so that they fit into memory.

        Args:
            size: bytes per result; 0 if unknown.
        """
        ahead: int = getattr(self.executor, "ahead", 0) or self._ahead
        if self.bound is not None:
            return self.bound.ahead(ahead, size)
        if not self.local or ahead * size <= _AHEAD_BYTES:
            return ahead
        return min(ahead, max(2 * self.cores, _AHEAD_BYTES // size))

    def submit(self, fn: Callable[..., Any], *args: Any, hurry: bool = False) -> Future[Any]:
        """Run a function on rows in this process; ``hurry`` as for ``run``."""
        return self._guard(_RUN_NOW if hurry else self._here, fn, *args)

    def run(self, program: Program, rows: Rows, env: Env, hurry: bool = False) -> Future[Result]:
        """Gather the rows and run the program.

        Args:
            hurry: run it at once in this thread, since the caller waits for it and the queue may be long.
        """
        stays = not program.operates
        copies = self.local or rows.part is not None or not isinstance(rows.row, range)
        if stays and (hurry or (not program.encodes and (self.inline or not copies))):
            # Cheap work that cannot block or hang: run it at once.
            return self._record(_RUN_NOW.submit(_gather_and_run, program, rows, env))
        if self.local or stays:
            return self._guard(self._here, _gather_and_run, program, rows, env)
        code, gathering = self._ship((program,)), Gathering(rows)

        def send(submit: Submit, marks: Marks | None) -> Future[Result]:
            return submit(run_trial_task if tried(marks) else run_shipped, code, replace(env, marks=marks), gathering)

        return self._record(self._recovery.submit(TaskWork(program, send, limits=time_limits(program))))

    def read(
        self, program: Program, reader: Any, split: Split, lap: int, env: Env, first: int = 0, hand: Hand | None = None
    ) -> Future[Result]:
        """Read a split from row number ``first`` on, and run the program.

        Args:
            hand: receives blocks as they are created if the split is read in this process.
        """
        if self.local:
            return self.reads.notes(
                self._guard(self.executor, read_split, program, reader, split, lap, env, first, hand)
            )
        code = self._ship((program, reader))

        def send(submit: Submit, marks: Marks | None) -> Future[Result]:
            own = replace(env, marks=marks)
            keeper: Any = getattr(submit, "__self__", None)  # a cluster, on which jobs may share cached rows
            kept = keeper.read_kept(code, own, split, lap, first, reader) if hasattr(keeper, "read_kept") else None
            return kept or submit(read_trial_task if tried(marks) else read_shipped, code, own, split, lap, first)

        work = TaskWork(program, send, _url(reader, split), time_limits(program, reader))
        return self.reads.notes(self._record(self._recovery.submit(work)))

    def wait(self, futures: Sequence[Future[Any]], awaited: str) -> None:
        """Wait until one of the futures is done; log if that takes long.

        Raises:
            WorkerError: no task made progress for too long.
        """
        meter = getattr(self.executor, "meter", None)  # of a cluster, to measure how long its trainers wait
        if meter is None:
            self._waiting.wait(futures, awaited)
        else:
            with meter.waited():
                self._waiting.wait(futures, awaited)

    def result(self, future: Future[T], awaited: str) -> T:
        """Return a task's result; log if it takes long.

        Raises:
            WorkerError: the worker died, or the executor was shut down.
        """
        if not future.done():
            self.wait([future], awaited)
        try:
            return future.result()
        except (BrokenExecutor, CancelledError) as error:
            block_daemon_at_exit()
            raise WorkerError(
                f"the executor was shut down while it ran {awaited}: {error}",
                done="the epoch was stopped; the state is that of the last batch received",
                fix="give an executor that outlives the run, or omit executor=; then resume from a checkpoint",
            ) from error

    def _progress(self) -> object:
        return self._running.progress(), self._recovery.progress(), getattr(self.executor, "waits", 0.0)

    def _at_work(self) -> list[RunningTask]:
        return [*self._running.at_work(), *self._recovery.at_work()]

    def _watch_own_thread(self) -> None:
        """Warn, from the watching thread, if work in the caller's own thread takes too long."""
        self._watches, still = False, StallTimer(self.patience.clock, self.patience.look)

        def look() -> None:
            if self._running.busy:  # otherwise the caller is busy with the last result
                self._waiting.look(still, "its own thread")

        self._recovery.watch(look)

    def _guard(self, executor: Executor, fn: Callable[..., Any], *args: Any) -> Future[Any]:
        if self._watches:
            self._watch_own_thread()
        try:
            return self._record(executor.submit(_stoppable, self._stop, self._running, fn, *args))
        except (RuntimeError, BrokenExecutor) as error:
            raise refused(error) from error

    def _record(self, future: Future[T]) -> Future[T]:
        return future if self.untaken is None else self.untaken.add(future)

    def _ship(self, code: tuple[Any, ...]) -> Code:
        """Return code pickled by value, once; workers cache it by its key."""
        key = tuple(id(part) for part in code)
        if key not in self._shipped:
            self._shipped[key] = Code.of(code)
            self._kept.append(code)
        return self._shipped[key]

    _finalizing = staticmethod(sys.is_finalizing)

    def close(self) -> None:
        """Cancel tasks that have not started; threads stop after their current row, and worker processes stay warm."""
        if self._finalizing():  # threads have ended, and modules that pools need may be unloaded
            return
        self._recovery.close()
        self._stop.set()
        if not self.local:
            self._here.shutdown(wait=False, cancel_futures=True)
        for executor in [self.executor, *self._old_executors] if self.owned else []:
            executor.shutdown(wait=False, cancel_futures=True)


_stops: weakref.WeakSet[Stop] = weakref.WeakSet()


def _end() -> None:
    """Stop threads after their current row when the program ends, before the interpreter joins them."""
    for stop in list(_stops):
        stop.set()


threading._register_atexit(_end)  # type: ignore[attr-defined] # runs before the hook of concurrent.futures


class Runners:
    """The runners of a run: a default one, and others for work that a plan places elsewhere; closed together.

    Args:
        default: runs all work without a place.
        workers: workers of each other runner; None uses the default runner's number, or the cores.
    """

    def __init__(self, default: Runner, workers: int | None = None) -> None:
        self.default = default
        self._workers = workers if default.inline or not default.owned else workers or default.workers
        self._others: dict[str, Runner] = {}

    @property
    def workers(self) -> int:
        """Workers of the other runners, except where a place has its own number."""
        return self._workers or self.default.cores

    def of(self, place: str) -> Runner:
        """Return the runner for an executor's name, created on first use; the default one for ``""`` and its own name.

        Raises:
            PlanError: the executor does not exist.
        """
        place, _ = executor_after_fork(place, None) if place else (place, None)
        if place in ("", "auto") or (self.default.owned and place == self.default.name):
            return self.default
        if place not in self._others:
            check_executor(place)
            workers = None if names_cluster(place) else self._workers
            default = self.default
            shared: Any = {
                "untaken": default.untaken,
                "reads": default.reads,
                "bound": default.bound,
                "alone": default.alone,
            }
            self._others[place] = Runner(place, workers, default.deaths, default.patience, **shared)
        return self._others[place]

    def __iter__(self) -> Iterator[Runner]:
        return iter([self.default, *self._others.values()])

    def close(self) -> None:
        """Close all runners; they cannot be used again."""
        for runner in self:
            runner.close()


def _url(reader: Any, split: Split) -> str:
    """Return the URL that a split is read from, for messages."""
    try:
        return str(reader.source.url(getattr(split, "file", 0)))
    except Exception:  # noqa: BLE001 - the user's own source may raise, and this is only for a message
        return "a split"


def _stoppable(stop: Stop, running: LocalTasks, fn: Callable[..., T], *args: Any) -> T:
    """Run a task of this process; its waits for storage end with the run."""
    with StopScope(stop):
        return running.run(stop, fn, *args)


def _describe_call(args: tuple[Any, ...]) -> str:
    """Describe what a call in this process works on, for messages."""
    program = next((a for a in args if isinstance(a, Program)), None)
    split = next((i for i, a in enumerate(args) if isinstance(a, Split)), 0)
    activity = (program.label if program is not None else "") or ("reading" if split else "putting batches together")
    return f"{activity}, {_url(args[split - 1], args[split])}" if split else activity


def _gather_and_run(program: Program, rows: Rows, env: Env) -> Result:
    timing, worked = Timing(), time.thread_time()
    block = rows.gather()
    timing.parts.append((GATHER, time.perf_counter() - timing.began, time.thread_time() - worked))
    return run_block(program, block, env, timing)
