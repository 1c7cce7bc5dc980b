"""Executor "processes": pools of worker processes that keep running between runs, one pool for each worker count."""

from __future__ import annotations

import atexit
import os
import statistics
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from cedar.core.packages import is_library, spec_of
from cedar.core.process import Lock
from cedar.executors.base import TaskExecutor
from cedar.executors.processes import forkserver
from cedar.executors.processes.pool import Pool, QueuedCall, WorkerProcess
from cedar.tasks.code import Code, call_shipped, same

_IDLE_SECONDS = 120.0  # when a pool is created, other pools that were unused for this long are closed
_pools: dict[int, Pool] = {}
_last_used: dict[int, float] = {}
_modules: dict[int, dict[str, Any]] = {}  # the ``__spec__`` of this process's modules when a pool was last asked for
_leases: weakref.WeakSet[Lease] = weakref.WeakSet()
_fresh_pools: weakref.WeakSet[Pool] = weakref.WeakSet()  # pools created by ``fresh``, and replaced ones
_lock = Lock()  # re-entrant: garbage collection may shut down a lease of an abandoned run at any time


class Lease(TaskExecutor):
    """One run's access to a warm pool. ``shutdown`` can cancel the run's queued tasks, but does not end the workers.

    With ``alone`` set, a worker is sent a task only when it is idle, so that no task waits for a slow task to finish.
    """

    def __init__(self, workers: int) -> None:
        self.workers, self.shut = workers, False
        self._futures: weakref.WeakSet[Future[Any]] = weakref.WeakSet()
        self._adding = threading.Lock()
        self._pool = warm(workers, self)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See ``concurrent.futures.Executor``."""
        return self._enter(QueuedCall(Future(), fn, args, kwargs, self.alone))

    def submit_first(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        return self._enter(QueuedCall(Future(), fn, args, {}, self.alone), first=True)

    def _enter(self, work: QueuedCall, first: bool = False) -> Future[Any]:
        if self.shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = self._pool.enter(work, first)
        with self._adding:
            self._futures.add(future)
        return future

    def members(self) -> list[WorkerProcess]:
        return [] if self._pool.closed else self._pool.members()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End this run's access to the pool. Other runs can still use it."""
        self.shut = True
        _last_used[self.workers] = time.monotonic()
        with self._adding:
            futures = list(self._futures)
        for future in futures if cancel_futures else []:
            future.cancel()
        for future in futures if wait else []:
            if not future.cancelled():
                future.exception()
        _end_if_replaced(self._pool)

    @property
    def ended(self) -> bool:
        """Whether the pool is closed, so that its workers accept no more tasks."""
        return self._pool.closed


def warm(workers: int, lease: Lease | None = None) -> Pool:
    """Return the pool with this many workers, and let ``lease`` use it. New workers start in the background.

    Functions of modules travel by name. So if one of the user's modules was reloaded, new workers replace the old ones.
    """
    replaced = None
    specs = _specs()
    with _lock:
        now = time.monotonic()
        if workers in _pools and _reloaded(workers, specs):
            _fresh_pools.add(replaced := _pools.pop(workers))
        if workers not in _pools:
            _drop_idle(now)
            _pools[workers] = Pool(workers)
        _last_used[workers], _modules[workers] = now, specs
        pool = _pools[workers]
        if lease is not None:  # here, so that no other thread ends the pool before the lease uses it
            lease._pool = pool
            _leases.add(lease)
    if replaced is not None:
        _end_if_replaced(replaced)
    return pool


def _specs() -> dict[str, Any]:
    return {name: spec_of(module) for name, module in [*sys.modules.items()]}


def _reloaded(workers: int, specs: dict[str, Any]) -> bool:
    """Return whether one of the user's modules was reloaded since a pool was last asked for."""
    known = _modules.get(workers, {})
    return not all(is_library(name) for name in known.keys() & specs.keys() if known[name] is not specs[name])


def _end_if_replaced(pool: Pool) -> None:
    """End a pool that new workers replaced, once no run uses it."""
    if pool in _pools.values():  # without the lock, which may be held by a thread that waits for this one to start
        return
    with _lock:
        used = any(lease._pool is pool and not lease.shut for lease in _leases)
    if not used:
        pool.shutdown(wait=False)


def fresh() -> Pool:
    """Create a pool with one new worker. The caller must shut it down."""
    pool = Pool(1)
    with _lock:
        _fresh_pools.add(pool)
    return pool


def pools() -> list[Pool]:
    """Return all warm pools."""
    with _lock:
        return list(_pools.values())


def ready(workers: int) -> bool:
    """Return whether a pool with this many workers exists, and the next run can use all of them immediately."""
    pool = _pools.get(workers)
    return pool is not None and pool.ready() == workers and not _reloaded(workers, _specs())


def _drop_idle(now: float) -> None:
    busy = {lease.workers for lease in _leases if not lease.shut}
    for workers in [w for w in _pools if w not in busy and now - _last_used[w] > _IDLE_SECONDS]:
        _pools.pop(workers).shutdown(wait=False)


def ship_costs(sample_bytes: int = 4 << 20, workers: int = 1) -> tuple[float, float]:
    """Measure the overhead of tasks on a running worker; return seconds per task, and bytes transferred per second.

    Args:
        sample_bytes: size of the block that is sent to the worker and back; above 0.
        workers: number of workers in the pool to measure.

    Raises:
        BrokenExecutor: no worker could be started.
    """
    import numpy as np

    pool = warm(workers)

    def round_trip(value: Any) -> float:
        start = time.perf_counter()
        pool.submit(same, value).result()
        return time.perf_counter() - start

    large = np.zeros(max(1, sample_bytes), dtype=np.uint8)
    round_trip(large)  # the first call starts the worker and allocates shared memory
    task = statistics.median(round_trip(None) for _ in range(30))
    large_trip = statistics.median(round_trip(large) for _ in range(7))
    return task, 2 * large.nbytes / max(large_trip - task, 1e-9)


def call_fresh(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function in a worker process and return its result.

    Raises:
        BrokenExecutor: no worker could be started, or the worker died.
        WorkerError: the function, an argument or the result cannot be pickled.
    """
    lease = Lease(next((pool.concurrency for pool in pools() if not pool.closed), 1))
    try:
        return lease.submit(call_shipped, Code.of((fn, args, kwargs))).result()
    finally:
        lease.shutdown(wait=False)


def close() -> None:
    """End all workers. The next run starts new ones."""
    with _lock:
        pools = [*_pools.values(), *_fresh_pools]
        _pools.clear()
    for pool in pools:
        pool.shutdown(wait=False)
    for pool in pools:
        pool.shutdown()
    forkserver.close()


def _after_fork() -> None:
    """In a forked child, abandon the parent's pools: the child has no keeper threads, and shares the parent's wires."""
    _parents.extend([*_pools.values(), *_fresh_pools])
    for pool in _parents:
        pool.abandon()
    _pools.clear()


_parents: list[Pool] = []  # references to the parent's objects, so that their finalizers do not run in this child
atexit.register(close)
os.register_at_fork(after_in_child=_after_fork)
