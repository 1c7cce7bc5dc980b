"""How fast a run goes, what it takes around its operators, and which tasks are measured."""

from __future__ import annotations

import os
import threading
import time

import pytest

import cedar
from cedar.execution import clocks
from cedar.execution.account import OwnTime
from cedar.execution.metrics import Metrics
from cedar.execution.pace import Pace
from cedar.execution.runner import Runner
from cedar.execution.watcher import Watcher
from cedar.profile import Observation


def test_what_is_around_operators_is_what_threads_did_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics, spent = Metrics(), [0.0, 0.0]
    monkeypatch.setattr(clocks, "spent_by", lambda _: tuple(spent))
    pace, runner = Pace(metrics), Runner("threads", 2)
    pace.start(runner)
    metrics.work, spent[0] = 5.0, 9.0  # before the first reading: not of this plan
    assert pace.look()
    for _ in range(10):
        metrics.elapsed += 0.1
        metrics.waited += 0.05
        metrics.rows_read += 100
        metrics.own += 0.01
        metrics.work += 0.06
        spent[0] += 0.08
        spent[1] += 0.02
        assert pace.look()
        assert not pace.look(), "not at once again"
    assert pace.own == pytest.approx(1e-4)
    assert pace.around == pytest.approx(2e-4)
    assert pace.waiting == pytest.approx(0.5)
    assert pace.cores == pytest.approx(1.1)
    assert pace.speed == pytest.approx(1000 / 0.8), "seconds in which others had the cores do not count"
    assert pace.here
    assert not pace.crowded
    metrics.elapsed += 1.0
    spent[1] += 1.0
    assert pace.look()
    assert (pace.crowded, pace.cores) == (True, 0.0), "others have the cores"
    assert pace.busy == pytest.approx(1.05), "of 2 seconds: 0.1 of its own, 0.8 at work and 1.2 waiting for a core"
    pace.renew()
    assert (pace.seconds, pace.own, pace.cores) == (0.0, 0.0, 0.0)
    runner.close()


def test_threads_beside_processes_do_not_say_that_others_have_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics, spent = Metrics(), [0.0, 0.0]
    monkeypatch.setattr(clocks, "spent_by", lambda _: tuple(spent))
    pace, runner = Pace(metrics), Runner("threads", 2)
    pace.start(runner)
    for _ in range(10):
        pace.look()
        metrics.elapsed += 0.1
        metrics.rows_read += 100
        metrics.work += 0.18  # in processes
        spent[0] += 0.01
        spent[1] += 0.01
    assert pace.look()
    assert not pace.here
    assert pace.speed == pytest.approx(1000)
    runner.close()


def test_it_follows_a_run_that_slows_down() -> None:
    metrics = Metrics()
    pace = Pace(metrics)
    for rows in [1000] * 100 + [100] * 80:
        metrics.elapsed += 0.1
        metrics.rows_read += rows
        metrics.work += 0.1
        pace.look()
    assert 1000 <= pace.speed < 2000
    assert pace.here, "where nothing tells of threads"


def test_the_time_of_other_threads_is_told_while_they_live() -> None:
    go = threading.Event()

    def works() -> None:
        sum(range(200_000))
        go.wait(30)

    thread = threading.Thread(target=works)
    thread.start()
    before = clocks.spent_by([thread])
    go.set()
    thread.join()
    assert before[0] >= 0.0
    limit = time.monotonic() + 30
    while os.path.exists(f"/proc/self/task/{thread.native_id}") and time.monotonic() < limit:
        time.sleep(0.001)  # the system's thread ends a little after Python's
    assert clocks.spent_by([thread]) == (0.0, 0.0)


@pytest.mark.parametrize("every", [1, 10])
def test_the_time_of_the_loaders_thread_is_counted_between_asking_and_having(every: int) -> None:
    metrics = Metrics()
    own = OwnTime(metrics, every)
    for _ in range(20):
        own.enter()
        sum(range(20_000))
        own.leave()
    counted = metrics.own
    assert counted > 0
    sum(range(20_000))
    own.leave()
    assert metrics.own == counted, "what the trainer does is not the loader's"


def test_tasks_are_measured_early_while_they_grow_and_now_and_then() -> None:
    watcher = Watcher(details=2, every=64)
    assert [n for n in range(1, 130) if watcher.next(0) == "detail"] == [2, 3, 12, 16, 24, 32, 48, 64, 128]
    watcher.closely(2)
    assert [n for n in range(130, 140) if watcher.next(0) == "detail"] == [130, 131]
    assert [n for n in range(1, 5) if watcher.next(1) == "detail"] == [2, 3], "a stage that begins later"


def test_tasks_that_grow_in_later_epochs_are_not_measured_again() -> None:
    watcher = Watcher(every=64)
    assert [n for n in range(1, 130) if watcher.next(0) == "detail"] == [64, 128]


def test_operators_that_were_not_seen_are_sought() -> None:
    watcher = Watcher(details=1, every=0, seeking=True)
    assert sum(watcher.next(0) == "detail" for _ in range(1000)) == 255
    watcher.seeking = False
    assert watcher.next(1) == ""


def test_newer_figures_count_as_soon_as_there_are_enough() -> None:
    metrics = Metrics(labels={0: "f"})

    def calls(number: int, seconds: float) -> None:
        for _ in range(number):
            metrics.observe(0, Observation(100, 100, 0, 0, seconds * 100, seconds * 100))

    calls(40, 1e-3)
    metrics.renew()
    calls(2, 5e-3)
    assert metrics.seen[0].figures("f").cpu == pytest.approx(1e-3)
    calls(1, 5e-3)
    assert metrics.seen[0].figures("f").cpu == pytest.approx(5e-3)


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_rows_from_a_cache_count_as_much_as_rows_that_are_read(executor: str) -> None:
    loader = cedar.from_items(list(range(200))).map(abs, "item").cache().batch(8).loader(executor=executor, workers=2)
    for epoch in (1, 2):
        assert sum(len(batch["item"]) for batch in loader) == 200
        metrics = loader._metrics
        assert metrics.rows_entered == 200 * epoch, "else a plan seems to have stopped"
        assert executor == "processes" or metrics.rows_read == 200
