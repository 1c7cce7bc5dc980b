"""Executors: adapters of ``concurrent.futures.Executor``, one a name. Results never depend on which one runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

from cedar.errors import PlanError


class InlineExecutor(Executor):
    """Runs a task when it is submitted, in the caller's thread: breakpoint() works."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - a future carries whatever was raised
            future.set_exception(error)
        return future


def available_cpus() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _inline(_workers: int) -> Executor:
    return InlineExecutor()


def _threads(workers: int) -> Executor:
    return ThreadPoolExecutor(workers, thread_name_prefix="cedar")


EXECUTORS: dict[str, Callable[[int], Executor]] = {"inline": _inline, "threads": _threads}
"""Name to factory: a new executor is one entry."""

PLANNED = ("processes", "dask")


def check_executor(executor: Any) -> None:
    """Raises PlanError for an executor that is not there."""
    if isinstance(executor, Executor) or executor == "auto" or executor in EXECUTORS:
        return
    there = ", ".join(repr(name) for name in ("auto", *EXECUTORS))
    if executor in PLANNED:
        raise PlanError(
            f"executor={executor!r} is not there yet",
            fix=f"there are {there}, or any concurrent.futures.Executor",
        )
    raise PlanError(f"executor={executor!r} is unknown", fix=f"there are {there}, or any concurrent.futures.Executor")
