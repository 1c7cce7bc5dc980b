"""Runner: submits tasks to an executor, and decides how many to keep in flight."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

from cedar.core.errors import WorkerError
from cedar.core.process import cores
from cedar.core.requests import Stop
from cedar.core.stream import Rows
from cedar.datasets.base import Split
from cedar.engine.memory import MemoryBound
from cedar.engine.rendezvous import PATIENCE
from cedar.executors.base import TaskExecutor, task_executor
from cedar.executors.choose import (
    DoneFuture,
    InlineExecutor,
    ThreadExecutor,
    check_executor,
    executor_after_fork,
    names_cluster,
    open_executor,
)
from cedar.executors.recovery.recovery import Recovery, refused
from cedar.executors.recovery.task import Deaths, Submit, TaskWork, block_daemon_at_exit, time_limits
from cedar.executors.recovery.waiting import LocalTasks, Patience, RunningTask, StallTimer, Waiting
from cedar.operators.base import Env
from cedar.operators.marks import Marks
from cedar.tasks.chain import Program, Result, run_rows
from cedar.tasks.code import Code, Gathering, read_shipped, run_shipped
from cedar.tasks.reading import Hand, SplitReader, read_split

_AHEAD_BYTES = 128 << 20  # keep at most this many bytes of results in flight, but enough tasks to keep all workers busy
_MAX_LOCAL_THREADS = 32  # maximum threads of this process when tasks run in other processes
_RUN_NOW = InlineExecutor()
_MIN_RECORDED = 64  # number of recorded futures before those already released are removed
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

    _another: Future[None] | None = None  # what the thread waits for; None until it first waits

    def notes(self, future: Future[T]) -> Future[T]:
        """Add a future to wait for."""
        future.add_done_callback(self._done)
        return future

    def another(self) -> Future[None]:
        """Return a future that completes when the next added future does; only one thread may wait for it."""
        if self._another is None or self._another.done():
            self._another = Future()
        return self._another

    def _done(self, _: Future[Any]) -> None:
        if self._another is not None:
            with suppress(InvalidStateError):  # another thread has just completed it
                self._another.set_result(None)


class UntakenResults(Arrivals):
    """Results of finished tasks that have not been consumed yet.

    Examples:
        >>> from cedar.tasks.chain import Result, Timing
        >>> untaken, done = UntakenResults(), Future()
        >>> untaken.add(done).set_result(Result([], Timing()))
        >>> untaken.nbytes()
        0
    """

    def __init__(self) -> None:
        self._futures: list[weakref.ref[Future[Any]]] = []
        self._prune_at = _MIN_RECORDED

    def add(self, future: Future[T]) -> Future[T]:
        """Record a future by a weak reference, which ends once the caller has consumed the result."""
        self.notes(future)
        self._futures.append(weakref.ref(future))
        if len(self._futures) > self._prune_at:
            self._futures = [each for each in self._futures if each() is not None]
            self._prune_at = 2 * len(self._futures) + _MIN_RECORDED
        return future

    def nbytes(self) -> int:
        """Return the bytes of all finished results that are still referenced; thread-safe."""
        size = 0
        for each in self._futures:
            future = each()
            if future is not None and future.done() and not future.cancelled() and future.exception() is None:
                size += sum(block.nbytes for block in getattr(future.result(), "blocks", ()))
        return size


class Runner:
    """Runs the tasks of one epoch, and is closed when the epoch ends.

    Args:
        executor: a name, or any ``concurrent.futures.Executor``, which the runner does not shut down.
        workers: number of concurrent tasks; None uses the number of cores.
        deaths: records the deaths of workers.
        patience: how long to wait for tasks that make no progress.
        watched: warn if a task that runs in the caller's own thread makes no progress.
        untaken: records results until they are consumed; None records nothing.
        reads: notified when a split has been read; None creates one.
        alone: do not queue a task behind another one while a worker is idle.
        places: whether ``of`` returns runners for other executors, which run what a plan places there.
        bound: limits how far to read ahead under a memory budget; None sets no limit.
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
        places: bool = False,
    ) -> None:
        self.untaken, self.bound, self.alone = untaken, bound, alone
        self.reads = reads or Arrivals()
        self._cluster = names_cluster(executor)  # the runner does not control a cluster's size
        self.owned = isinstance(executor, str) or self._cluster
        name = "threads" if executor == "auto" else executor
        self.name = "dask" if self._cluster else name if isinstance(name, str) else type(executor).__name__
        workers = 1 if name == "inline" else workers
        self.deaths = deaths or Deaths()
        self.patience = patience = patience or Patience()
        self.executor = self._open(name, workers or (None if self._cluster else self.cores))
        self.workers = workers or self.executor.concurrency or self.cores
        self.inline = isinstance(self.executor, InlineExecutor)
        self.local = self.executor.in_this_process
        self._ahead = 1 if self.inline else 2 * self.workers
        self._places = places
        self._elsewhere: dict[str, Runner] = {}  # runners for other executors, by place
        # Number of workers of these runners, except of clusters; None uses the number of cores.
        self._workers_elsewhere = None if self.inline or not self.owned else self.workers
        # Executor for work that stays in this process. A thread pool starts threads only when needed.
        self._here = self.executor if self.local else ThreadExecutor(min(self.workers, _MAX_LOCAL_THREADS))
        self._old_executors: list[Executor] = []  # executors replaced by ``resize``, which still finish their tasks
        self._supervisor: Recovery | None = None  # created with the first task in another process
        self._stop = Stop()
        _stops.add(self._stop)
        self._running = LocalTasks(patience, self._stop, _describe_call)
        self._waiting = Waiting(patience, self._progress, self._at_work, lambda: not self.local)
        self._watches = watched and self.inline and patience.timeout is None
        if self.inline and patience.timeout is not None:  # unlike the caller's thread, a hanging one can be abandoned
            self.executor = self._here = task_executor(ThreadPoolExecutor(1, thread_name_prefix="cedar-inline"))
        self._shipped: dict[tuple[int, ...], Code] = {}
        self._kept: list[Any] = []  # references to shipped code, so that its id is not reused

    def _open(self, executor: str | Executor, workers: int | None) -> TaskExecutor:
        opened = open_executor(executor, workers, self.patience.timeout or PATIENCE)
        opened.alone = self.alone
        return opened

    def resize(self, workers: int, ahead: int | None = None) -> bool:
        """Change the number of concurrent tasks. Submitted tasks continue. Return False if the size is fixed.

        Must be called by the thread that submits tasks.

        Args:
            workers: number of threads or processes; above 0.
            ahead: tasks to keep in flight; None means twice the workers.
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

    @cached_property
    def cores(self) -> int:
        """Number of cores that this process may use."""
        return cores()

    @property
    def workers_elsewhere(self) -> int:
        """Number of workers of the runners for other executors, except of clusters."""
        return self._workers_elsewhere or self.cores

    @property
    def lanes(self) -> int:
        """Number of tasks that can run concurrently, on all executors of the run."""
        lanes = self.workers
        for runner in self._elsewhere.values():
            lanes += runner.workers
        return lanes

    def of(self, place: str) -> Runner:
        """Return the runner for an executor's name, created on first use. ``""`` and ``"auto"`` mean this one.

        Raises:
            PlanError: the executor does not exist.
        """
        place, _ = executor_after_fork(place, None) if place else (place, None)
        if not self._places or place in ("", "auto") or (self.owned and place == self.name):
            return self
        if place not in self._elsewhere:
            check_executor(place)
            self._elsewhere[place] = Runner(
                place, None if names_cluster(place) else self._workers_elsewhere, self.deaths, self.patience,
                untaken=self.untaken, reads=self.reads, bound=self.bound, alone=self.alone,
            )  # fmt: skip
        return self._elsewhere[place]

    @property
    def ahead(self) -> int:
        """Number of tasks to keep in flight; on a cluster, it depends on the cluster's current size."""
        return self.executor.ahead or self._ahead

    def ahead_of(self, size: int) -> int:
        """Return how many tasks with results of ``size`` bytes to keep in flight, so that the results fit into memory.

        Args:
            size: bytes per result; 0 if unknown.
        """
        ahead = self.executor.ahead or self._ahead
        if self.bound is not None:
            return self.bound.ahead(ahead, size)
        if self._cluster or ahead * size <= _AHEAD_BYTES:
            return ahead
        least = 2 * self.cores if self.local else self.workers + 1
        return min(ahead, max(least, _AHEAD_BYTES // size))

    def submit(self, fn: Callable[..., Any], *args: Any, hurry: bool = False) -> Future[Any]:
        """Run a function in this process; see ``run`` for ``hurry``."""
        return self._guard(_RUN_NOW if hurry else self._here, fn, *args)

    def run(self, program: Program, rows: Rows, env: Env, hurry: bool = False) -> Future[Result] | Result:
        """Submit a task that gathers the rows and runs the program. Cheap work that cannot block is done immediately.

        Args:
            hurry: run a program without operators immediately in this thread, because the caller waits for its result.
        """
        stays = not program.ordinals
        copies = self.local or rows.part is not None or not isinstance(rows.row, range)
        if stays and (hurry or (not program.encodes and (self.inline or not copies))):
            try:
                result = run_rows(program, rows, env)
            except Exception as error:  # noqa: BLE001 - raised once the results of earlier tasks are delivered
                failed: Future[Result] = Future()
                failed.set_exception(error)
                return failed
            return result if self.untaken is None else self.untaken.add(DoneFuture(result))
        if self.local or stays:
            return self._guard(self._here, run_rows, program, rows, env)
        code, gathering = self._ship((program,)), Gathering(rows)

        def send(submit: Submit, marks: Marks | None) -> Future[Result]:
            return submit(run_shipped, code, replace(env, marks=marks), gathering)

        return self._supervise(TaskWork(program, send, limits=time_limits(program)))

    def read(
        self,
        program: Program,
        reader: SplitReader,
        split: Split,
        lap: int,
        env: Env,
        first: int = 0,
        hand: Hand | None = None,
    ) -> Future[Result]:
        """Submit a task that reads a split from row ``first`` on, and runs the program.

        Args:
            hand: called with each finished block, if the split is read in this process.
        """
        if self.local:
            return self.reads.notes(
                self._guard(self.executor, read_split, program, reader, split, lap, env, first, hand)
            )
        code = self._ship((program, reader))

        def send(submit: Submit, marks: Marks | None) -> Future[Result]:
            own = replace(env, marks=marks)
            kept = submit.executor.read_kept(code, own, split, lap, first, reader)
            return kept or submit(read_shipped, code, own, split, lap, first)

        work = TaskWork(program, send, _url(reader, split), time_limits(program, reader))
        return self.reads.notes(self._supervise(work))

    def wait(self, futures: Sequence[Future[Any]], awaited: str) -> None:
        """Wait until one of the futures is done; log a warning if that takes long.

        Raises:
            WorkerError: no task made progress for too long.
        """
        with self.executor.awaited():
            self._waiting.wait(futures, awaited)

    def result(self, future: Future[T], awaited: str) -> T:
        """Return a task's result; log a warning if it takes long.

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

    def _recovery(self) -> Recovery:
        """Return what supervises the tasks in other processes, and in the caller's own thread."""
        if self._supervisor is None:
            marks = self.name == "processes"
            self._supervisor = Recovery(lambda: self.executor, self.deaths, marks, self.patience)
        return self._supervisor

    def _progress(self) -> object:
        supervised = None if self._supervisor is None else self._supervisor.progress()
        return self._running.progress(), supervised, self.executor.waits

    def _at_work(self) -> list[RunningTask]:
        return [*self._running.at_work(), *(() if self._supervisor is None else self._supervisor.at_work())]

    def _watch_own_thread(self) -> None:
        """Start a thread that warns if work in the caller's own thread takes too long."""
        self._watches, still = False, StallTimer(self.patience.clock, self.patience.look)

        def look() -> None:
            if self._running.busy:  # otherwise the caller is working on the last result, such as a training step
                self._waiting.look(still, "its own thread")

        self._recovery().watch(look)

    def _guard(self, executor: Executor, fn: Callable[..., Any], *args: Any) -> Future[Any]:
        if self._watches:
            self._watch_own_thread()
        try:
            future = executor.submit(self._running.run, fn, *args)
        except (RuntimeError, BrokenExecutor) as error:
            raise refused(error) from error
        return future if self.untaken is None else self.untaken.add(future)

    def _supervise(self, work: TaskWork) -> Future[Result]:
        future = self._recovery().submit(work)
        return future if self.untaken is None else self.untaken.add(future)

    def _ship(self, code: tuple[Any, ...]) -> Code:
        """Return code pickled by value. It is pickled once, and workers cache it by its key."""
        key = tuple(id(part) for part in code)
        if key not in self._shipped:
            self._shipped[key] = Code.of(code)
            self._kept.append(code)
        return self._shipped[key]

    _finalizing = staticmethod(sys.is_finalizing)

    def close(self) -> None:
        """Cancel tasks that have not started. Threads stop after their current row; worker processes keep running.

        The runners for other executors are closed too.
        """
        for runner in self._elsewhere.values():
            runner.close()
        if self._finalizing():  # at interpreter exit, threads have ended, and modules that pools need may be unloaded
            return
        if self._supervisor is not None:
            self._supervisor.close()
        self._stop.set()
        if not self.local:
            self._here.shutdown(wait=False, cancel_futures=True)
        for executor in [self.executor, *self._old_executors] if self.owned else []:
            executor.shutdown(wait=False, cancel_futures=True)


_stops: weakref.WeakSet[Stop] = weakref.WeakSet()


def _end() -> None:
    """At the end of the program, stop threads after their current row, before the interpreter joins them."""
    for stop in list(_stops):
        stop.set()


threading._register_atexit(_end)  # type: ignore[attr-defined] # runs before the hook of concurrent.futures


def _url(reader: SplitReader, split: Split) -> str:
    """Return the URL that a split is read from, for messages."""
    try:
        return str(reader.plain.source.url(split.file))
    except Exception:  # noqa: BLE001 - the user's own source may raise, and this is only for a message
        return "a split"


def _describe_call(args: tuple[Any, ...]) -> str:
    """Describe the work of a call in this process, for messages."""
    program = next((a for a in args if isinstance(a, Program)), None)
    split = next((i for i, a in enumerate(args) if isinstance(a, Split)), 0)
    activity = (program.label if program is not None else "") or ("reading" if split else "putting batches together")
    return f"{activity}, {_url(args[split - 1], args[split])}" if split else activity
