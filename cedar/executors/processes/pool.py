"""Pool: worker processes that stay warm between epochs and loaders, behind the interface of an Executor.

A thread for each worker keeps it: starts it, hands it tasks, takes what comes back, and starts another one when it
dies. Only the task that a dead worker was at work on fails; one that waited behind it goes to another worker.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from cedar.executors.processes.keeper import Keeper, QueuedCall
from cedar.executors.processes.process import WorkerDied, WorkerProcess

_REAP = 2.0  # seconds to wait for the threads at the end


class Pool(Executor):
    """Worker processes, started in the background as soon as the pool is created.

    Args:
        workers: how many.
    """

    def __init__(self, workers: int) -> None:
        self._max_workers = workers
        self._closed = False
        self._changed = threading.Condition()
        self._waiting: deque[QueuedCall] = deque()
        self._idle = 0
        self._keepers = [Keeper(self, number) for number in range(workers)]
        for keeper in self._keepers:
            keeper.start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See ``concurrent.futures.Executor``; ``Code`` among the arguments is sent once to each worker."""
        return self.enter(QueuedCall(Future(), fn, args, kwargs))

    def submit_first(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        """The same, before all that wait: for a call that was lost, and that a caller may wait for."""
        return self.enter(QueuedCall(Future(), fn, args, {}), first=True)

    def enter(self, work: QueuedCall, first: bool = False) -> Future[Any]:
        """A call, behind all that wait or before them; what it returns is ``work.future``."""
        if not self._closed:  # asked before the lock: after a fork, nothing is there to release it
            with self._changed:
                if not self._closed:
                    (self._waiting.appendleft if first else self._waiting.append)(work)
                    self._changed.notify()
                    return work.future
        raise RuntimeError("cannot schedule new futures after shutdown")

    def ready(self) -> int:
        """How many workers are ready to work; one that died while it had none is not."""
        workers = [keeper.worker for keeper in self._keepers if keeper.ready]
        return sum(worker is not None and worker.alive for worker in workers)

    def pids(self) -> list[int]:
        """The process ids of the workers that live."""
        workers = [keeper.worker for keeper in self._keepers]
        return [worker.pid for worker in workers if worker is not None and worker.alive]

    def members(self) -> list[WorkerProcess]:
        """All its processes, those that start as well."""
        workers = [keeper.worker for keeper in self._keepers]
        return [worker for worker in workers if worker is not None]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the workers, at once; tasks in progress end in WorkerDied."""
        with self._changed:
            self._closed = True
            waiting, self._waiting = self._waiting, deque()
            self._changed.notify_all()
        for work in waiting:
            work.future.cancel()
        for keeper in self._keepers:
            keeper.stop()
        deadline = time.monotonic() + _REAP
        for keeper in self._keepers if wait else []:
            keeper.join(max(0.0, deadline - time.monotonic()))

    def abandon(self) -> None:
        """In a process that was forked from the one whose pool this is: the workers are not ours."""
        self._closed = True
        for keeper in self._keepers:
            if keeper.worker is not None:
                keeper.worker.wire.close()

    def take(self, wait: bool) -> QueuedCall | None:
        """The next call; None once the pool is shut down, and where there is none to be sent ahead (``wait`` False)."""
        with self._changed:
            while not self._closed:
                # What an idle worker can begin at once is not for one that is at work.
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
        """Calls that were not begun go first to another worker."""
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
