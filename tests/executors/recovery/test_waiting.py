"""Waiting: who waits for what, until when, and what ends it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import Any

import pytest

import cedar
import cedar.testing
from cedar.executors.recovery.patience import Patience, StallTimer
from cedar.executors.recovery.waiting import RunningTask, Waiting
from tests.executors.recovery.clock import Clock


class Waits:
    """A wait for what never comes, by a clock that each look moves by a second."""

    def __init__(self, timeout: float | None, ends: bool = False) -> None:
        self.clock, self.moves, self.looks = Clock(), True, 0
        self.waiting = Waiting(Patience(timeout, clock=self.clock), self._progress, self._at_work, lambda: ends)
        self.still = StallTimer(self.clock, 1.0)

    def _progress(self) -> object:
        return self.looks if self.moves else 0

    def _at_work(self) -> list[RunningTask]:
        row = cedar.core.errors.RowRef(0, 0, 5, url="a.parquet")
        return [RunningTask("map(f)", "process 123", time.monotonic() - 31, row)]

    def seconds(self, count: int) -> None:
        for _ in range(count):
            self.looks += 1
            self.clock.now += 1
            self.waiting.look(self.still, "map(f) -> map(g)")


def test_one_warning_says_who_waits_for_what_since_when(caplog: pytest.LogCaptureFixture) -> None:
    waits = Waits(None)
    waits.seconds(1000)
    assert not caplog.records  # slow, and make progress
    waits.moves = False
    waits.seconds(1000)
    (record,) = caplog.records
    said = record.getMessage()
    assert said.startswith("no progress for 30 s, since ")
    assert "the loop waits for map(f) -> map(g); at work: map(f), a.parquet, row 5 (process 123, for 31 s)" in said


@pytest.mark.parametrize(("ends", "limit"), [(False, 5), (True, 20)])
def test_a_wait_has_an_end_where_there_is_a_limit(ends: bool, limit: int) -> None:
    waits = Waits(5.0, ends)
    waits.seconds(100)
    waits.moves = False
    waits.seconds(limit)
    with pytest.raises(
        cedar.WorkerError, match=f"no progress for {limit} s, since .* at work: map.f., a.parquet, row 5"
    ):
        waits.seconds(1)


def test_a_result_that_is_there_is_not_waited_for() -> None:
    done: Future[int] = Future()
    done.set_result(1)
    Waits(5.0).waiting.wait([done], "map(f)")


@pytest.mark.parametrize("others", [0, 2])
def test_a_cancelled_task_ends_the_wait(others: int) -> None:
    futures: list[Future[Any]] = [Future() for _ in range(1 + others)]
    waiting = Waiting(Patience(timeout=10, look=0.05), lambda: 0, list, lambda: False)
    timer = threading.Timer(0.1, futures[0].cancel)
    timer.start()
    waiting.wait(futures, "a task")
    timer.join()
    assert futures[0].cancelled()
