"""Measures the overhead of running tasks on a cluster, by sending tasks and blocks to the cluster and back."""

from __future__ import annotations

import statistics
import time
from typing import Any

from cedar.cluster.dask import open_cluster
from cedar.cluster.dask.executor import DaskExecutor
from cedar.core.process import Lock

_TASKS = 64
_LARGE = 4 << 20
_ROUNDS = 3
_known: dict[str, tuple[float, float]] = {}
_lock = Lock()


def ship_costs(where: Any) -> tuple[str, int, float, float]:
    """Return address, number of threads, seconds per empty task, and bytes per second of transfer both ways.

    Many tasks are in flight at a time, as in a run, because throughput matters more than the latency of one task.

    Raises:
        CedarError: the cluster does not answer or cannot be used.
    """
    executor = open_cluster(where, None)
    assert isinstance(executor, DaskExecutor)
    with _lock:
        if executor.address not in _known:
            _known[executor.address] = _measured(executor)
    executor.shutdown(wait=False)
    return (executor.address, executor.watch.threads, *_known[executor.address])


def _measured(executor: DaskExecutor) -> tuple[float, float]:
    import numpy as np

    def seconds(value: Any, tasks: int) -> float:
        start = time.perf_counter()
        for future in [executor.submit(_same, value) for _ in range(tasks)]:
            future.result()
        return (time.perf_counter() - start) / tasks

    large = np.zeros(_LARGE, dtype=np.uint8)
    seconds(large, 2)  # the first tasks open connections
    task = statistics.median(seconds(None, _TASKS) for _ in range(_ROUNDS))
    moved = statistics.median(seconds(large, 4) for _ in range(_ROUNDS))
    return task, 2 * _LARGE / max(moved - task, 1e-6)


def _same(value: Any) -> Any:
    return value
