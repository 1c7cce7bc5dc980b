"""Work that a run's planner does concurrently with the run: calls of the user's functions, and starts of processes."""

from __future__ import annotations

import atexit
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from cedar.core.errors import WorkerError
from cedar.operators.base import RowOperator
from cedar.plan import graph
from cedar.plan.data import Plan
from cedar.tasks.code import Code, load_shipped

T = TypeVar("T")
_PATIENCE = 1.0  # seconds to wait for a call in progress when a run or the program ends
_CHECK_SECONDS = 0.1  # seconds between two checks whether the run or the program has ended
_WARMUP_PATIENCE = 20.0  # maximum seconds until the worker processes of a plan are ready
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


class RunOver(Exception):
    """The run has ended, so the user's functions must not be called any more."""


class Calls:
    """Calls of the user's functions made by one run's planner thread.

    Args:
        inline: only the run's own thread may call the user's functions, because they may work in one thread only.
            That thread executes pending calls in ``serve``, between two batches.
    """

    def __init__(self, inline: bool) -> None:
        self._inline = inline
        self._busy = threading.Lock()
        self._ended = threading.Event()
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()

    @property
    def over(self) -> bool:
        """Whether the run or the program has ended."""
        return self._ended.is_set() or not threading.main_thread().is_alive()

    def run(self, work: Callable[[], T]) -> T:
        """Run ``work``, which calls the user's functions, and return its result.

        Raises:
            RunOver: the run, or the program, has ended.
        """
        if self._inline:
            return self._wait(work)
        with self._busy:
            self.check()
            return work()

    def _wait(self, work: Callable[[], T]) -> T:
        done: Future[T] = Future()
        self._jobs.put((work, done))
        while True:
            self.check()
            try:
                return done.result(_CHECK_SECONDS)
            except TimeoutError:
                if done.done():  # ``work`` itself raised the TimeoutError
                    raise

    def check(self) -> None:
        """Raise RunOver if the run or the program has ended."""
        if self.over:
            raise RunOver

    def serve(self) -> None:
        """Execute the pending calls; must be called from the run's own thread."""
        while self._inline and not self._jobs.empty():
            work, done = self._jobs.get()
            try:
                done.set_result(work())
            except Exception as error:  # noqa: BLE001 - raised again in the planner thread
                done.set_exception(error)

    def end(self) -> None:
        """Prevent further calls, and wait briefly for a call in progress."""
        self._ended.set()
        if self._busy.acquire(timeout=_PATIENCE):
            self._busy.release()


def start_background_thread(work: Callable[..., None], *args: Any) -> threading.Thread:
    """Start a daemon thread. At exit, the interpreter waits for it briefly."""
    thread = threading.Thread(target=work, args=args, daemon=True, name="cedar-plan")
    _threads.add(thread)
    thread.start()
    return thread


@atexit.register
def _join_threads() -> None:
    """Wait briefly for planner threads: a daemon thread that runs native code can crash the interpreter at exit."""
    for thread in list(_threads):
        thread.join(_PATIENCE)


class WorkerWarmup:
    """Prepares worker processes for a run's candidate plans, which are identified by their keys.

    During the run, a plan is tried for a limited time, and rejected if it delivers no row in that time. Importing the
    modules that its functions need may take longer, so workers import them before the trial.
    """

    def __init__(self) -> None:
        self._loading: dict[str, tuple[float, list[Future[Any]]]] = {}  # start time, and one future for each process
        self.ready: frozenset[str] = frozenset()  # plans that can run
        self.unfit: frozenset[str] = frozenset()  # plans that cannot

    def begin(self, key: str, plan: Plan, workers: int) -> None:
        """Start up to ``workers`` worker processes and load what the plan's operators need."""
        from cedar.executors import processes

        operators = [node.operator for node in graph.walk(plan.root) if isinstance(node.operator, RowOperator)]
        try:
            code = Code.of([(type(operator), operator.code()) for operator in operators])
        except WorkerError:  # some code cannot be sent to other processes, so the run cannot use this plan
            self.unfit |= {key}
            return
        pool = processes.warm(workers)
        self._loading[key] = time.perf_counter(), [pool.submit(load_shipped, code) for _ in range(workers)]

    def settled(self) -> tuple[frozenset[str], frozenset[str]]:
        """Return the plans that are ready, and the plans that cannot run in processes."""
        for key, (since, loading) in list(self._loading.items()):
            done = all(each.done() for each in loading)
            if not done and time.perf_counter() <= since + _WARMUP_PATIENCE:
                continue
            if done and not any(each.cancelled() or each.exception() for each in loading):
                self.ready |= {key}
            else:
                self.unfit |= {key}
            del self._loading[key]
        return self.ready, self.unfit
