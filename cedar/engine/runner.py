"""Runner: submits tasks to an executor, and knows how many to keep in flight."""

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
from cedar.core.asking import Stop, StopScope
from cedar.core.errors import WorkerError
from cedar.core.stream import Rows
from cedar.datasets.base import Split
from cedar.engine.meet import PATIENCE
from cedar.engine.memory import MemoryBound
from cedar.executors.choose import (
    InlineExecutor,
    available_cpus,
    check_executor,
    names_cluster,
    of_fork,
    open_executor,
    own_threads,
)
from cedar.executors.recovery import Deaths, Patience, Recovery, Submit, TaskWork, limits_of, refused, rest_at_exit
from cedar.executors.recovery.patience import StallTimer
from cedar.executors.recovery.trial import tried, try_read, try_shipped
from cedar.executors.recovery.waiting import LocalTasks, RunningTask, Waiting
from cedar.operators.base import Env
from cedar.operators.marks import Marks
from cedar.tasks.chain import Program, Result, Timing, run_block
from cedar.tasks.code import Code
from cedar.tasks.reading import Hand, read_split
from cedar.tasks.shipped import Gathering, read_shipped, run_shipped

GATHER: Part = ("gather", ())
_AHEAD_BYTES = 128 << 20  # of results on their way, next to two for each core, in this process
_MOST_HERE = 32  # threads next to a cluster
_AT_ONCE = InlineExecutor()
_LOOKED_AT = 64  # results noted, before those that were taken are forgotten
T = TypeVar("T")


class Arrivals:
    """Tells one thread that waits when some future is done.

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
        """One of those that are waited for."""
        future.add_done_callback(self._done)
        return future

    def another(self) -> Future[None]:
        """Done once one of them is that is not yet; for the one thread that waits for them."""
        if self._another.done():
            self._another = Future()
        return self._another

    def _done(self, _: Future[Any]) -> None:
        with suppress(InvalidStateError):  # for another one, in another thread
            self._another.set_result(None)


class UntakenResults(Arrivals):
    """Results of tasks that are there, and that nothing has taken yet.

    Examples:
        >>> untaken, done = UntakenResults(), Future()
        >>> untaken.add(done).set_result(Result([], Timing()))
        >>> untaken.nbytes()
        0
    """

    def __init__(self) -> None:
        self._futures: list[weakref.ref[Future[Any]]] = []
        self._enough = _LOOKED_AT
        super().__init__()

    def add(self, future: Future[T]) -> Future[T]:
        """One that will be taken; who takes its result releases it."""
        self.notes(future)
        self._futures.append(weakref.ref(future))
        if len(self._futures) > self._enough:
            self._futures = [each for each in self._futures if each() is not None]
            self._enough = 2 * len(self._futures) + _LOOKED_AT
        return future

    def nbytes(self) -> int:
        """Bytes of their rows; anyone may ask, at any time."""
        size = 0
        for each in self._futures:
            future = each()
            if future is not None and future.done() and not future.cancelled() and future.exception() is None:
                size += sum(block.nbytes for block in getattr(future.result(), "blocks", ()))
        return size


class Runner:
    """One for each run of an epoch; closed with it.

    Args:
        executor: a name, or any ``concurrent.futures.Executor``, which is then not shut down here.
        workers: how many tasks run at once; None takes the cores there are.
        deaths: where the deaths of workers are written down.
        patience: how long to wait for what does not make progress.
        watched: the caller iterates; it is warned if a task in its own thread makes no progress.
        untaken: where results are noted until they are taken; None does not.
        reads: the counter of splits that were read; None creates one.
        alone: no task is to wait behind another where a worker could take it that has none.
        bound: says how far to read ahead, where a budget says how much memory there is.
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
        self._cluster = names_cluster(executor)  # of others: it is as large as it is
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
        # Threads share our memory; anything else gets pickled code and gathered blocks.
        self.local = self.inline or isinstance(self.executor, ThreadPoolExecutor)
        self._ahead = 1 if self.inline else 2 * self.workers
        self.others: Runners | None = None  # of other places, where a plan may want some
        # For work on what stays here; a pool of threads starts none before it is asked to.
        self._here = self.executor if self.local else own_threads(min(self.workers, _MOST_HERE))
        self._former: list[Executor] = []  # of other sizes; they finish what they have
        self._recovery = Recovery(lambda: self.executor, self.deaths, self.name == "processes", patience)
        self._stop = Stop()
        _stops.add(self._stop)
        self._running = LocalTasks(patience, _named)
        self._waiting = Waiting(patience, self._progress, self._at_work, lambda: not self.local)
        self._watches = watched and self.inline and patience.timeout is None
        if self.inline and patience.timeout is not None:  # a thread can be left behind, and the caller's own one cannot
            self.executor = self._here = ThreadPoolExecutor(1, thread_name_prefix="cedar-inline")
        self._shipped: dict[tuple[int, ...], Code] = {}
        self._kept: list[Any] = []  # what was shipped, so that no other code gets its id

    def _open(self, executor: str | Executor, workers: int | None) -> Executor:
        opened: Any = open_executor(executor, workers, self.patience.timeout or PATIENCE)
        if self.alone and hasattr(opened, "alone"):
            opened.alone = True
        return opened  # type: ignore[no-any-return]

    def resize(self, workers: int, ahead: int | None = None) -> bool:
        """Run so many tasks at once from now on; those submitted continue. False for an executor whose size is fixed.

        Args:
            workers: threads or processes; above 0.
            ahead: tasks to keep in flight; None is twice the workers.

        To be called by the thread that submits.
        """
        if not self.owned or self.inline or self._cluster:
            return False
        if workers != self.workers:
            self._former.append(self.executor)
            self.workers, self.executor = workers, self._open(self.name, workers)
            self._former[-1].shutdown(wait=False)
        self._here = self.executor if self.local else self._here
        self._ahead = ahead or 2 * workers
        return True

    @property
    def lanes(self) -> int:
        """How many tasks can run at once, here and in the other places of the run."""
        return self.workers if self.others is None else sum(runner.workers for runner in self.others)

    @property
    def ahead(self) -> int:
        """Tasks to keep in flight; they grow with a cluster."""
        return getattr(self.executor, "ahead", 0) or self._ahead

    def ahead_of(self, size: int) -> int:
        """Tasks to keep in flight whose results have so many bytes each: no more than fit into memory.

        Args:
            size: 0 if unknown yet.
        """
        ahead: int = getattr(self.executor, "ahead", 0) or self._ahead
        if self.bound is not None:
            return self.bound.ahead(ahead, size)
        if not self.local or ahead * size <= _AHEAD_BYTES:
            return ahead
        return min(ahead, max(2 * self.cores, _AHEAD_BYTES // size))

    def submit(self, fn: Callable[..., Any], *args: Any, hurry: bool = False) -> Future[Any]:
        """Work on rows that are already here; ``hurry`` as for ``run``."""
        return self._guard(_AT_ONCE if hurry else self._here, fn, *args)

    def run(self, program: Program, rows: Rows, env: Env, hurry: bool = False) -> Future[Result]:
        """Gather the rows and run the program.

        Args:
            hurry: a caller waits for nothing else; behind other tasks in the queue it would wait for those.
        """
        stays = not program.operates
        copies = self.local or rows.part is not None or not isinstance(rows.row, range)
        if stays and (hurry or (not program.encodes and (self.inline or not copies))):
            # Nothing that could wait or hang; and no task's worth, or nothing else to do it.
            return self._noted(_AT_ONCE.submit(_gather_and_run, program, rows, env))
        if self.local or stays:
            return self._guard(self._here, _gather_and_run, program, rows, env)
        code, gathering = self._ship((program,)), Gathering(rows)

        def send(submit: Submit, marks: Marks | None) -> Future[Result]:
            return submit(try_shipped if tried(marks) else run_shipped, code, replace(env, marks=marks), gathering)

        return self._noted(self._recovery.submit(TaskWork(program, send, limits=limits_of(program))))

    def read(
        self, program: Program, reader: Any, split: Split, lap: int, env: Env, first: int = 0, hand: Hand | None = None
    ) -> Future[Result]:
        """Read a split, from row number ``first`` on, and run the program.

        Args:
            hand: is given the blocks as they are created, or some of them, where that is done in this process.
        """
        if self.local:
            return self.reads.notes(
                self._guard(self.executor, read_split, program, reader, split, lap, env, first, hand)
            )
        code = self._ship((program, reader))

        def send(submit: Submit, marks: Marks | None) -> Future[Result]:
            own = replace(env, marks=marks)
            keeper: Any = getattr(submit, "__self__", None)  # a cluster, on which jobs may share what cache() keeps
            kept = keeper.read_kept(code, own, split, lap, first, reader) if hasattr(keeper, "read_kept") else None
            return kept or submit(try_read if tried(marks) else read_shipped, code, own, split, lap, first)

        work = TaskWork(program, send, _url(reader, split), limits_of(program, reader))
        return self.reads.notes(self._noted(self._recovery.submit(work)))

    def wait(self, futures: Sequence[Future[Any]], awaited: str) -> None:
        """Until one of them is done; says so in the log when that takes long.

        Raises:
            WorkerError: nothing made progress for too long.
        """
        meter = getattr(self.executor, "meter", None)  # a cluster's, which follows how its trainers wait
        if meter is None:
            self._waiting.wait(futures, awaited)
        else:
            with meter.waited():
                self._waiting.wait(futures, awaited)

    def result(self, future: Future[T], awaited: str) -> T:
        """A task's result; says so in the log when it lets itself be waited for.

        Raises:
            WorkerError: the worker died, or the executor was shut down.
        """
        if not future.done():
            self.wait([future], awaited)
        try:
            return future.result()
        except (BrokenExecutor, CancelledError) as error:
            rest_at_exit()
            raise WorkerError(
                f"the executor was shut down while it ran {awaited}: {error}",
                done="the epoch was stopped; the state is that of the last batch received",
                fix="give an executor that stays, or leave executor= out; then resume from a checkpoint",
            ) from error

    def _progress(self) -> object:
        return self._running.progress(), self._recovery.progress(), getattr(self.executor, "waits", 0.0)

    def _at_work(self) -> list[RunningTask]:
        return [*self._running.at_work(), *self._recovery.at_work()]

    def _watch_own(self) -> None:
        """The caller's own thread works: the thread that watches says so if that lasts."""
        self._watches, still = False, StallTimer(self.patience.clock, self.patience.look)

        def look() -> None:
            if self._running.busy:  # else the caller has the last result, and does what it wants to
                self._waiting.look(still, "its own thread")

        self._recovery.watch(look)

    def _guard(self, executor: Executor, fn: Callable[..., Any], *args: Any) -> Future[Any]:
        if self._watches:
            self._watch_own()
        try:
            return self._noted(executor.submit(_stoppable, self._stop, self._running, fn, *args))
        except (RuntimeError, BrokenExecutor) as error:
            raise refused(error) from error

    def _noted(self, future: Future[T]) -> Future[T]:
        return future if self.untaken is None else self.untaken.add(future)

    def _ship(self, code: tuple[Any, ...]) -> Code:
        """Code travels by value, pickled once; workers keep it under its key."""
        key = tuple(id(part) for part in code)
        if key not in self._shipped:
            self._shipped[key] = Code.of(code)
            self._kept.append(code)
        return self._shipped[key]

    _finalizing = staticmethod(sys.is_finalizing)

    def close(self) -> None:
        """Drop what has not started; threads end at the row that they are at, and worker processes stay warm."""
        if self._finalizing():  # threads have ended by then, and the modules that pools need may be gone
            return
        self._recovery.close()
        self._stop.set()
        if not self.local:
            self._here.shutdown(wait=False, cancel_futures=True)
        for executor in [self.executor, *self._former] if self.owned else []:
            executor.shutdown(wait=False, cancel_futures=True)


_stops: weakref.WeakSet[Stop] = weakref.WeakSet()


def _end() -> None:
    """The program ends: threads end behind the rows that they are at, before they are waited for."""
    for stop in list(_stops):
        stop.set()


threading._register_atexit(_end)  # type: ignore[attr-defined] # as concurrent.futures does; the last one comes first


class Runners:
    """The runners of a run: one by default, others where a plan places work elsewhere; closed together.

    Args:
        default: where everything runs that is not placed.
        workers: of the others; None takes as many as the default has, or the cores there are.
    """

    def __init__(self, default: Runner, workers: int | None = None) -> None:
        self.default = default
        self._workers = workers if default.inline or not default.owned else workers or default.workers
        self._others: dict[str, Runner] = {}

    @property
    def workers(self) -> int:
        """Of the other runners, wherever the number is not the place's own."""
        return self._workers or self.default.cores

    def of(self, place: str) -> Runner:
        """The runner of an executor's name, made when first asked for; the default one for ``""`` and its own name.

        Raises:
            PlanError: there is no such executor.
        """
        place, _ = of_fork(place, None) if place else (place, None)
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
        """End all; they cannot be used again."""
        for runner in self:
            runner.close()


def _url(reader: Any, split: Split) -> str:
    """What a split is of, for people."""
    try:
        return str(reader.source.url(getattr(split, "file", 0)))
    except Exception:  # noqa: BLE001 - a source of the user's; this is for a message only
        return "a split"


def _stoppable(stop: Stop, running: LocalTasks, fn: Callable[..., T], *args: Any) -> T:
    """A task of this process, whose waits for storage end with the run."""
    with StopScope(stop):
        return running.run(stop, fn, *args)


def _named(args: tuple[Any, ...]) -> str:
    """What a call in this process is at work on, for people."""
    program = next((a for a in args if isinstance(a, Program)), None)
    split = next((i for i, a in enumerate(args) if isinstance(a, Split)), 0)
    activity = (program.label if program is not None else "") or ("reading" if split else "putting batches together")
    return f"{activity}, {_url(args[split - 1], args[split])}" if split else activity


def _gather_and_run(program: Program, rows: Rows, env: Env) -> Result:
    timing, worked = Timing(), time.thread_time()
    block = rows.gather()
    timing.parts.append((GATHER, time.perf_counter() - timing.began, time.thread_time() - worked))
    return run_block(program, block, env, timing)
