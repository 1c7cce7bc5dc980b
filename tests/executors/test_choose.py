"""Executors by their names, and which of those of users would hang."""

from __future__ import annotations

import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import pytest

import cedar
from cedar import PlanError
from cedar.executors.choose import InlineExecutor, check_executor, open_executor
from tests.engine.delivery.few_rows import rows


def test_an_unknown_executor_is_told_which_there_are() -> None:
    with pytest.raises(PlanError, match="'ray' is unknown") as caught:
        rows().loader(executor="ray")
    assert "'threads'" in str(caught.value)
    assert 'scheduler address such as "tcp://10.0.0.1:8786"' in str(caught.value)


def test_a_task_inline_is_done_when_it_was_submitted() -> None:
    executor = open_executor("inline", 3)
    assert isinstance(executor, InlineExecutor)
    future = executor.submit(threading.get_ident)
    told: list[int] = []
    future.add_done_callback(lambda done: told.append(done.result()))
    assert told == [threading.get_ident()]
    assert not future.cancel()
    assert "_condition" not in vars(future), "modules may be gone when a program ends and cancels what is left"
    with pytest.raises(ZeroDivisionError):
        executor.submit(lambda: 1 // 0).result()


def test_a_pool_that_was_shut_down_is_not_said_to_be_of_another_process() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
    check_executor(pool)


def test_processes_that_are_made_by_fork_are_refused() -> None:
    with (
        ProcessPoolExecutor(1, get_context("fork")) as pool,
        pytest.raises(cedar.PlanError, match="starts its processes by fork"),
    ):
        check_executor(pool)
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        check_executor(pool)
