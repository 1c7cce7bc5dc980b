"""The executors that run tasks. Each is a ``concurrent.futures.Executor``, and all produce the same results."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

from cedar.core.errors import PlanError, user_site
from cedar.core.numeric import keep_in_this_thread
from cedar.core.packages import extension, loaded
from cedar.core.process import START_FRESH, call_fresh_processes_by, cores, lost_polars
from cedar.executors.base import TaskExecutor, task_executor
from cedar.operators.instances import constructing

_SCHEMES = ("tcp://", "tls://", "ws://", "wss://", "ucx://")


class DoneFuture(Future[Any]):
    """A future that is created with its result. It creates its condition variable only on first access."""

    def __init__(self, result: Any) -> None:
        self._result, self._exception, self._state = result, None, "FINISHED"
        self._waiters: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        if name != "_condition":
            raise AttributeError(name)
        self._condition = threading.Condition()
        return self._condition

    def done(self) -> bool:
        return True

    def cancel(self) -> bool:
        return False

    def result(self, timeout: float | None = None) -> Any:
        return self._result

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        fn(self)


class InlineExecutor(TaskExecutor):
    """Runs each task in the caller's thread when it is submitted, so that ``breakpoint()`` works in tasks."""

    in_this_process = True

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        try:
            return DoneFuture(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the future reports any error
            future: Future[Any] = Future()
            future.set_exception(error)
            return future


class ThreadExecutor(ThreadPoolExecutor, TaskExecutor):
    """Threads of this process that only run cedar's tasks. They are started when they are first needed."""

    in_this_process = True

    def __init__(self, workers: int) -> None:
        super().__init__(workers, thread_name_prefix="cedar", initializer=keep_in_this_thread)

    @property
    def concurrency(self) -> int:
        return self._max_workers

    def threads(self) -> list[threading.Thread]:
        return list(self._threads)


def executor_after_fork(executor: Any, workers: int | None) -> tuple[Any, int | None]:
    """Return executor and workers. In a process forked after cedar was used, threads are replaced by processes."""
    if lost_polars() and executor in ("auto", "threads", "inline"):
        return "processes", 1 if executor == "inline" else workers
    return executor, workers


def _processes(workers: int) -> Executor:
    from cedar.executors.processes import Lease

    return Lease(workers)


def _call_fresh(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    from cedar.executors.processes import call_fresh

    return call_fresh(fn, *args, **kwargs)


call_fresh_processes_by(_call_fresh)
EXECUTORS: dict[str, Callable[[int], Executor]] = {
    "inline": lambda _workers: InlineExecutor(), "threads": ThreadExecutor, "processes": _processes,
    "dask": lambda workers: extension("cluster.dask").open_cluster("dask", workers),
}  # fmt: skip
"""Factory of each executor, by name. To add an executor, add an entry."""


def names_cluster(executor: Any) -> bool:
    """Return whether ``executor`` is a Dask client or a scheduler's address, without importing dask.

    Examples:
        >>> names_cluster("tcp://10.0.0.1:8786"), names_cluster("threads")
        (True, False)
    """
    if isinstance(executor, str):
        return executor.startswith(_SCHEMES)
    distributed = loaded("distributed")
    return distributed is not None and isinstance(executor, distributed.Client)


def open_executor(executor: Any, workers: int | None, limit: float = 0.0) -> TaskExecutor:
    """Return the executor for a name, a Dask client, or a scheduler's address. Any other Executor is adapted.

    Args:
        workers: number of concurrent tasks; None means one per available core, or one per thread of the cluster.
        limit: seconds to wait for a cluster that was reachable earlier but is not reachable now.

    Raises:
        WorkerError: the cluster does not answer, or its workers have other versions of libraries.
    """
    if names_cluster(executor):
        return extension("cluster.dask").open_cluster(executor, workers, limit)  # type: ignore[no-any-return]
    if executor == "threads" and constructing():
        executor = "inline"
    return task_executor(EXECUTORS[executor](workers or cores()) if isinstance(executor, str) else executor)


def check_executor(executor: Any) -> None:
    """Raise PlanError if the executor is unknown, or if its workers would hang."""
    if isinstance(executor, str) and executor in ("auto", *EXECUTORS):
        return
    from concurrent.futures import ProcessPoolExecutor  # imports multiprocessing

    if isinstance(executor, ProcessPoolExecutor):  # a forked worker could wait forever for locks of missing threads
        context = getattr(executor, "_mp_context", None)
        threads = threading.active_count() > 1 or "polars" in sys.modules
        if context is not None and context.get_start_method() == "fork" and threads:
            raise PlanError(
                "the executor starts its processes by fork, which hangs if threads are running, as in this process",
                site=user_site(),
                fix='ProcessPoolExecutor(n, mp_context=multiprocessing.get_context("forkserver")), or "spawn"',
            )
    ended = isinstance(executor, ThreadPoolExecutor) and (executor._shutdown or executor._broken)
    if isinstance(executor, ThreadPoolExecutor) and not ended and not all(t.is_alive() for t in executor._threads):
        raise PlanError(
            "the executor was created before this process was forked, and its threads do not exist here",
            site=user_site(),
            fix=f"create the executor in this process, or leave executor= out; or {START_FRESH}",
        )
    if isinstance(executor, Executor) or names_cluster(executor):
        return
    known_names = ", ".join(repr(name) for name in ("auto", *EXECUTORS))
    raise PlanError(
        f"executor={executor!r} is unknown",
        site=user_site(),
        fix=f"use {known_names}, a Dask client, a scheduler address such as "
        '"tcp://10.0.0.1:8786", or any concurrent.futures.Executor',
    )
