"""TaskExecutor: everything that cedar asks of an executor, and the adapter for executors that offer only ``submit``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from threading import Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cedar.datasets.base import Split
    from cedar.executors.processes.pool import WorkerProcess
    from cedar.operators.base import Env
    from cedar.tasks.code import Code
    from cedar.tasks.reading import SplitReader


class TaskExecutor(Executor):
    """Base class of cedar's executors. The defaults suit an executor that has only ``submit`` and ``shutdown``."""

    alone = False  # whether a task is sent to a worker only when the worker is idle, so that none waits for a slow task
    ahead = 0  # the number of tasks to keep in flight, if it follows the size of a cluster

    @property
    def in_this_process(self) -> bool:
        """Whether tasks share memory with the caller; other executors are sent pickled code and gathered blocks."""
        return False

    @property
    def concurrency(self) -> int | None:
        """The number of tasks that can run concurrently; None if it is unknown."""
        return None

    @property
    def waits(self) -> float:
        """A value that changes while the executor waits for a lost cluster, which counts as progress."""
        return 0.0

    @property
    def ended(self) -> bool:
        """Whether it was closed intentionally, such as at exit, so that lost tasks are not retried."""
        return False

    def submit_first(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        """Submit a call ahead of all queued calls if possible. Used for retries, which other tasks may wait for."""
        return self.submit(fn, *args)

    def read_kept(
        self, code: Code, env: Env, split: Split, lap: int, first: int, reader: SplitReader
    ) -> Future[Any] | None:
        """Submit a call that reads a split from blocks that a service keeps for all jobs; None if it keeps none."""
        return None

    def awaited(self) -> AbstractContextManager[object]:
        """Return a context manager in which the caller waits for a task's result."""
        return nullcontext()

    def threads(self) -> Sequence[Thread]:
        """Return the threads of this process that run tasks."""
        return ()

    def members(self) -> Sequence[WorkerProcess]:
        """Return the worker processes that the executor started on this machine."""
        return ()


class AdaptedExecutor(TaskExecutor):
    """Any ``concurrent.futures.Executor``, such as the user's own."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner

    @property
    def in_this_process(self) -> bool:
        return isinstance(self.inner, ThreadPoolExecutor)

    @property
    def concurrency(self) -> int | None:
        return getattr(self.inner, "_max_workers", None)  # as the executors of the standard library call it

    def threads(self) -> Sequence[Thread]:
        return list(self.inner._threads) if isinstance(self.inner, ThreadPoolExecutor) else ()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self.inner.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.inner.shutdown(wait, cancel_futures=cancel_futures)


def task_executor(executor: Executor) -> TaskExecutor:
    """Return an executor that has everything that cedar asks of one."""
    return executor if isinstance(executor, TaskExecutor) else AdaptedExecutor(executor)
