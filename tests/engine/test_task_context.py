"""What a run gives its streams, to have work done: where, and what is counted of it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from cedar.engine.metrics import Metrics
from cedar.engine.runner import Runner
from cedar.engine.task_context import Tasks, Watcher, is_remote
from cedar.operators.base import Env
from cedar.tasks.chain import KernelStep, Program


@pytest.fixture
def tasks() -> Any:
    runner = Runner("threads", 1, places=True)
    yield Tasks(runner, Env(), Metrics(labels={3: "map"}), Watcher(details=1))
    runner.close()


def test_places_in_this_process_are_the_runs_own(tasks: Tasks) -> None:
    assert [is_remote(place) for place in ("inline", "threads", "processes", "dask", "tcp://a:1")] == [False] * 2 + [
        True
    ] * 3
    assert tasks.on("inline") is tasks.on("threads") is tasks


def test_the_first_work_of_an_operator_is_done_at_once(tasks: Tasks) -> None:
    here = threading.get_ident()
    assert tasks.submit(3, threading.get_ident).result() == here
    assert tasks.submit(3, threading.get_ident).result() != here
    assert tasks.submit(4, threading.get_ident).result() == here, "another operator's"


def test_work_that_fails_is_counted_too(tasks: Tasks) -> None:
    before = len(tasks.metrics.time.workers({3: "map"}, {}, False))
    with pytest.raises(ZeroDivisionError):
        tasks.submit(3, lambda: 1 // 0).result()
    assert len(tasks.metrics.time.workers({3: "map"}, {}, False)) > before


def test_the_watcher_says_which_tasks_look_closely(tasks: Tasks) -> None:
    program = Program()
    assert [tasks.task_env(program).watch for _ in range(3)] == ["", "detail", ""]


def test_tasks_with_operators_that_were_not_seen_look_closely_and_no_others(tasks: Tasks) -> None:
    tasks.watcher.details, tasks.watcher.seeking = 0, frozenset({3})
    of_three, of_four = (Program((KernelStep(len, (i,)),)) for i in (3, 4))  # type: ignore[arg-type]
    assert [[tasks.task_env(program).watch for _ in range(3)] for program in (of_three, of_four)] == [
        ["", "detail", "detail"],
        ["", "", ""],
    ]
    assert [tasks.task_env(of_four, source=3).watch for _ in range(2)] == ["detail", "detail"]


def test_tasks_are_measured_early_while_they_grow_and_now_and_then() -> None:
    watcher = Watcher(details=2, every=64)
    assert [n for n in range(1, 130) if watcher.next(0) == "detail"] == [2, 3, 12, 16, 24, 32, 48, 64, 128]
    watcher.measure_more(2)
    assert [n for n in range(130, 140) if watcher.next(0) == "detail"] == [130, 131]
    assert [n for n in range(1, 5) if watcher.next(1) == "detail"] == [2, 3], "a stage that begins later"


def test_tasks_that_grow_in_later_epochs_are_not_measured_again() -> None:
    watcher = Watcher(every=64)
    assert [n for n in range(1, 130) if watcher.next(0) == "detail"] == [64, 128]


def test_operators_that_were_not_seen_are_sought() -> None:
    watcher = Watcher(details=1, every=0)
    assert sum(watcher.next(0, sought=True) == "detail" for _ in range(1000)) == 255
    assert watcher.next(1) == ""
