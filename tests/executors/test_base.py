"""What cedar asks of an executor, and executors of users, which offer no more than ``submit``."""

from __future__ import annotations

from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from typing import Any

import cedar
from cedar.executors.base import TaskExecutor, task_executor
from cedar.executors.choose import open_executor


class Counting(Executor):
    """Runs calls at once, and counts them."""

    def __init__(self) -> None:
        self.count, self.open = 0, True

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.count += 1
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.open = False


def test_an_executor_with_submit_alone_promises_nothing() -> None:
    inner = Counting()
    executor = task_executor(inner)
    assert task_executor(executor) is executor
    assert (executor.in_this_process, executor.concurrency, executor.ahead, executor.ended) == (False, None, 0, False)
    assert not executor.members()
    with executor.awaited():
        assert executor.submit_first(abs, -3).result() == 3
    executor.shutdown()
    assert (inner.count, inner.open) == (1, False)


def test_a_loader_takes_it_as_it_is_and_leaves_it_open() -> None:
    inner = Counting()
    p = cedar.from_items([{"x": i} for i in range(40)]).map(abs, "x", dtype=int).batch(10)
    with p.loader(executor=inner, workers=2) as loader:
        assert [len(batch["x"]) for batch in loader] == [10] * 4
    assert inner.open
    assert inner.count > 0


def test_pools_of_the_standard_library_tell_how_many_calls_run_at_once() -> None:
    with ThreadPoolExecutor(3) as threads, ProcessPoolExecutor(2, get_context("spawn")) as processes:
        of_threads, of_processes = task_executor(threads), task_executor(processes)
    assert (of_threads.in_this_process, of_threads.concurrency) == (True, 3)
    assert (of_processes.in_this_process, of_processes.concurrency) == (False, 2)


def test_executors_of_cedar_are_used_as_they_are() -> None:
    inline = open_executor("inline", 1)
    assert inline.in_this_process
    assert isinstance(inline, TaskExecutor)
    assert task_executor(inline) is inline
