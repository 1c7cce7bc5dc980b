"""Start worker processes for a plan and load its code before the run switches to it, so that no rows are delayed."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any

from cedar.core.errors import WorkerError
from cedar.executors import processes
from cedar.operators.base import RowOperator
from cedar.plan import graph
from cedar.plan.data import Plan
from cedar.tasks.code import Code
from cedar.tasks.shipped import load_shipped

_PATIENCE = 20.0  # maximum seconds until the worker processes of a plan are ready


class WorkerWarmup:
    """Prepares worker processes for a run's candidate plans, which are identified by their keys.

    During the run, a plan is tried for a limited time, and rejected if it delivers no row in that time. Importing the
    modules that its functions need may take longer, so workers import them before the trial.
    """

    def __init__(self) -> None:
        self._loading: dict[str, tuple[float, list[Future[Any]]]] = {}  # start time, and one future for each process
        self._unfit: set[str] = set()  # plans whose code cannot be sent to workers, since the last call of ``settled``

    def begin(self, key: str, plan: Plan, workers: int) -> None:
        """Start up to ``workers`` worker processes and load what the plan's operators need."""
        operators = [node.operator for node in graph.walk(plan.root) if isinstance(node.operator, RowOperator)]
        try:
            code = Code.of([(type(operator), operator.code()) for operator in operators])
        except WorkerError:  # some code cannot be sent to other processes, so the run cannot use this plan
            self._unfit.add(key)
            return
        pool = processes.warm(workers)
        self._loading[key] = time.perf_counter(), [pool.submit(load_shipped, code) for _ in range(workers)]

    def settled(self) -> tuple[set[str], set[str]]:
        """Return the plans that became ready since the last call, and the plans that cannot run in processes."""
        ready: set[str] = set()
        unfit, self._unfit, now = self._unfit, set(), time.perf_counter()
        for key, (since, loading) in list(self._loading.items()):
            if all(each.done() for each in loading):
                failed = any(each.cancelled() or each.exception() for each in loading)
                (unfit if failed else ready).add(key)
            elif now > since + _PATIENCE:
                unfit.add(key)
            if key in ready | unfit:
                del self._loading[key]
        return ready, unfit
