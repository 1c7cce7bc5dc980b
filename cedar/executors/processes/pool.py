"""Pool: an Executor whose worker processes keep running between epochs and loaders.

For each worker, a thread starts the worker, sends it tasks, receives the results, and replaces the worker if it dies.
Only the task that the dead worker was running fails. Tasks that were queued after it are sent to other workers.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from cedar.executors.base import TaskExecutor
from cedar.executors.processes.keeper import Keeper, QueuedCall
from cedar.executors.processes.process import WorkerDied, WorkerProcess

_JOIN_SECONDS = 2.0  # maximum seconds to wait for the keeper threads at shutdown


class Pool(TaskExecutor):
    """Worker processes, started in the background as soon as the pool is created.

    Args:
        workers: number of worker processes.
    """

    def __init__(self, workers: int) -> None:
        self._closed = False
        self._changed = threading.Condition()
        self._waiting: deque[QueuedCall] = deque()
        self._idle = 0
        self._keepers = [Keeper(self, number) for number in range(workers)]
        for keeper in self._keepers:
            keeper.start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See ``concurrent.futures.Executor``. A ``Code`` argument is sent to each worker only once."""
        return self.enter(QueuedCall(Future(), fn, args, kwargs))

    def submit_first(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        return self.enter(QueuedCall(Future(), fn, args, {}), first=True)

    def enter(self, work: QueuedCall, first: bool = False) -> Future[Any]:
        """Add a call at the end of the queue, or at its front (``first``); return its future."""
        if not self._closed:  # check before locking, because in a forked child no thread would release the lock
            with self._changed:
                if not self._closed:
                    (self._waiting.appendleft if first else self._waiting.append)(work)
                    self._changed.notify()
                    return work.future
        raise RuntimeError("cannot schedule new futures after shutdown")

    @property
    def concurrency(self) -> int:
        return len(self._keepers)

    def ready(self) -> int:
        """Return how many workers are ready and alive."""
        workers = [keeper.worker for keeper in self._keepers if keeper.ready]
        return sum(worker is not None and worker.alive for worker in workers)

    def pids(self) -> list[int]:
        """Return the process ids of the workers that are alive."""
        workers = [keeper.worker for keeper in self._keepers]
        return [worker.pid for worker in workers if worker is not None and worker.alive]

    def members(self) -> list[WorkerProcess]:
        """Return all worker processes, including those that are still starting."""
        workers = [keeper.worker for keeper in self._keepers]
        return [worker for worker in workers if worker is not None]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Kill the workers. Running tasks fail with WorkerDied."""
        with self._changed:
            self._closed = True
            waiting, self._waiting = self._waiting, deque()
            self._changed.notify_all()
        for work in waiting:
            work.future.cancel()
        for keeper in self._keepers:
            keeper.stop()
        deadline = time.monotonic() + _JOIN_SECONDS
        for keeper in self._keepers if wait else []:
            keeper.join(max(0.0, deadline - time.monotonic()))

    def abandon(self) -> None:
        """In a forked child of the process that owns the pool, close the copied wires without ending the workers."""
        self._closed = True
        for keeper in self._keepers:
            if keeper.worker is not None:
                keeper.worker.wire.close()

    def take(self, wait: bool) -> QueuedCall | None:
        """Return the next call; None if the pool is closed or, without ``wait``, if no call may be sent ahead."""
        with self._changed:
            while not self._closed:
                # Do not send a call to a busy worker if an idle worker can start it now.
                if len(self._waiting) > (0 if wait else self._idle) and (wait or not self._waiting[0].alone):
                    work = self._waiting.popleft()
                    if work.future.running() or work.future.set_running_or_notify_cancel():
                        return work
                elif not wait:
                    return None
                else:
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
            return None

    def give_back(self, works: list[QueuedCall]) -> None:
        """Return calls that no worker has started to the front of the queue."""
        with self._changed:
            if not self._closed:
                self._waiting.extendleft(reversed(works))
                self._changed.notify(len(works))
                return
        for work in works:
            work.future.set_exception(WorkerDied("the workers were ended"))

    @property
    def closed(self) -> bool:
        return self._closed
