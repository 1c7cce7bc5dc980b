"""Warming: worker processes are made ready for a plan next to the run, so that rows come as soon as it takes over."""

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

_PATIENCE = 20.0  # seconds for the processes of a plan to start


class Warming:
    """Of one run, by the key of each plan.

    A plan is given a slot of the run, and given up where no row comes in it. What its functions import may take longer
    than that: workers load them before.
    """

    def __init__(self) -> None:
        self._loading: dict[str, tuple[float, list[Future[Any]]]] = {}  # since when, and in each process
        self._unfit: set[str] = set()  # since it was last asked

    def begin(self, key: str, plan: Plan, workers: int) -> None:
        """Start so many workers, where they are not there, and load what the plan's operators need."""
        operators = [node.operator for node in graph.walk(plan.root) if isinstance(node.operator, RowOperator)]
        try:
            code = Code.of([(type(operator), operator.code()) for operator in operators])
        except WorkerError:  # threads continue with what no other process can be sent
            self._unfit.add(key)
            return
        pool = processes.warm(workers)
        self._loading[key] = time.perf_counter(), [pool.submit(load_shipped, code) for _ in range(workers)]

    def settled(self) -> tuple[set[str], set[str]]:
        """The plans that became ready since this was last asked, and those that cannot run there."""
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
