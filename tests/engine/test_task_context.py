"""What a run gives its streams, to have work done: where, and what is counted of it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from cedar.engine.metrics import Metrics
from cedar.engine.programs import BranchKernel
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
    assert [tasks.watcher.task_env(tasks.env, program).watch for _ in range(3)] == ["", "detail", ""]


def test_tasks_with_operators_that_were_not_seen_look_closely_and_no_others(tasks: Tasks) -> None:
    env, watcher = tasks.env, tasks.watcher
    watcher.details, watcher.seeking = 0, frozenset({3})
    of_three, of_four = (Program((KernelStep(BranchKernel(0), (i,)),)) for i in (3, 4))
    assert [[watcher.task_env(env, program).watch for _ in range(3)] for program in (of_three, of_four)] == [
        ["", "detail", "detail"],
        ["", "", ""],
    ]
    assert [watcher.task_env(env, of_four, source=3).watch for _ in range(2)] == ["detail", "detail"]


def measured(watcher: Watcher, program: Program, tasks: range, source: int = -1) -> list[int]:
    """The numbers of the tasks that measure each operator."""
    return [number for number in tasks if watcher.task_env(Env(), program, source).watch == "detail"]


def test_tasks_are_measured_early_while_they_grow_and_now_and_then() -> None:
    watcher, program, later = Watcher(details=2, every=64), Program(), Program()
    assert measured(watcher, program, range(1, 130)) == [2, 3, 12, 16, 24, 32, 48, 64, 128]
    watcher.measure_more(2)
    assert measured(watcher, program, range(130, 140)) == [130, 131]
    assert measured(watcher, later, range(1, 5)) == [2, 3], "a stage that begins later"


def test_tasks_that_grow_in_later_epochs_are_not_measured_again() -> None:
    assert measured(Watcher(every=64), Program(), range(1, 130)) == [64, 128]


def test_operators_that_were_not_seen_are_sought() -> None:
    watcher, program = Watcher(details=1, every=0, seeking=frozenset({3})), Program()
    assert len(measured(watcher, program, range(1000), source=3)) == 255
    assert watcher.task_env(Env(), Program()).watch == ""
