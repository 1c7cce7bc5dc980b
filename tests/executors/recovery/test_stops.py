"""Stops: workers that stop without dying, and tasks that do not get on."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import cedar
import cedar.testing
from cedar.engine.delivery import parts
from cedar.executors import processes
from cedar.executors.recovery import patience as patiences
from cedar.executors.recovery.patience import Patience, Pulse, StallTimer, pulse, why_stopped
from cedar.executors.recovery.waiting import RunningTask, Waiting
from cedar.executors.recovery.watch import Watch

LINUX = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="processes are looked at in /proc")
WORKERS = 2


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def soon(**limits: float) -> Callable[..., Patience]:
    """As the loader makes it, with short times."""
    return lambda timeout: Patience(timeout, **({"look": 0.02, "stopped": 0.1, "frozen": 0.5} | limits))


def numbers(n: int = 200) -> cedar.Pipeline:
    return cedar.from_items([{"x": i} for i in range(n)])


def rows(pipeline: cedar.Pipeline, **options: Any) -> tuple[list[int], cedar.Report]:
    with pipeline.loader(**({"executor": "processes", "workers": WORKERS, "plan": "off"} | options)) as loader:
        return [x for batch in loader for x in batch["x"].tolist()], loader.report()


# ---- time ------------------------------------------------------------------------------------------------------------


def test_time_in_which_nobody_looked_does_not_count() -> None:
    clock = Clock()
    still = StallTimer(clock, 1.0)
    found = []
    for now, state in [(1, "a"), (2, "a"), (3, "a"), (1000, "a"), (1001, "b"), (1002, "b")]:
        clock.now = now
        found.append(still.look({"one": state})["one"])
    assert found == [0, 1, 2, 4, 0, 1]  # the one who looks was stopped itself for a quarter of an hour
    assert still.look({}) == {}
    assert still.look({"one": "b"}) == {"one": 0}


@pytest.mark.parametrize(
    ("state", "seconds", "beats", "stopped"),
    [
        ("T", 3, False, True), ("T", 1, True, False), ("t", 1000, True, False), ("S", 20, True, True),
        ("S", 1000, False, False), ("D", 20, True, True), ("R", 1000, True, False), ("Z", 1000, True, False),
    ],
)  # fmt: skip
def test_what_is_taken_for_stopped(state: str, seconds: float, beats: bool, stopped: bool) -> None:
    assert bool(why_stopped(Pulse(state, 7), seconds, Patience(), beats)) == stopped


@LINUX
def test_a_worker_beats_whatever_it_does() -> None:
    pool = processes.warm(1)
    pid = pool.submit(os.getpid).result()
    assert pid in [member.pid for member in pool.members()]
    hangs = pool.submit(cedar.testing.hang, "lock")  # holds Python's lock, and sleeps
    try:
        before = pulse(pid)
        deadline = time.monotonic() + 60
        while (now := pulse(pid)) is None or before is None or now.turns == before.turns:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        os.kill(pid, signal.SIGKILL)
        assert hangs.exception() is not None


def test_a_member_that_is_frozen_is_ended_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    class Member:
        pid, why = 4_000_000, ""

        def kill(self, why: str = "") -> None:
            self.why = why

    clock, member, turns = Clock(), Member(), iter([1, 2, 3, 3, 3, 3])
    monkeypatch.setattr("cedar.executors.recovery.watch.pulse", lambda pid: Pulse("S", next(turns)))
    watch = Watch(Patience(frozen=3.0, clock=clock))
    for now in range(6):
        assert not member.why
        clock.now = now
        watch.look([member], [])
    assert member.why == "frozen: none of its threads ran for 3 s"


# ---- waiting ---------------------------------------------------------------------------------------------------------


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
    assert not caplog.records  # slow, and getting on
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


@pytest.mark.parametrize("wrong", [-1, "5", True, float("nan"), float("inf")])
def test_a_limit_is_a_number_of_seconds(wrong: Any) -> None:
    with pytest.raises(cedar.PipelineError, match="timeout="):
        numbers().batch(2).loader(timeout=wrong)


# ---- whole runs ------------------------------------------------------------------------------------------------------


@LINUX
@pytest.mark.parametrize("executor", ["processes", "dask"])
def test_a_worker_that_is_stopped_is_replaced_and_loses_no_row(
    executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "Patience", soon())

    def stops(x: int) -> int:
        if x == 50 and not (tmp_path / "seen").exists():
            (tmp_path / "seen").touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        return x

    found, report = rows(numbers().map(stops, "x", dtype=int).shuffle(seed=1).batch(10), executor=executor)
    assert sorted(found) == list(range(200))
    if executor == "processes":
        assert report.restarts == 1
        assert "stopped by a signal" in report.deaths[0]
        assert "run again" in report.deaths[0]


@LINUX
def test_a_worker_that_is_stopped_before_it_has_work_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "Patience", soon())
    pool = processes.warm(WORKERS)
    pids = {pool.submit(os.getpid).result() for _ in range(20)}
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    assert rows(numbers().map(abs, "x", dtype=int).batch(10))[0] == list(range(200))
    assert not pids & set(pool.pids())


def test_a_row_without_progress_is_tried_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "Patience", soon())

    def hangs(x: int) -> int:
        while x == 77:
            time.sleep(0.01)
        return x

    found, report = rows(numbers().map(hangs, "x", dtype=int, on_error=cedar.Skip()).batch(10), timeout=1)
    assert found == [x for x in range(200) if x != 77]
    assert report.skipped == {"map(hangs)": 1}
    assert any("no progress within timeout=1 s" in death for death in report.deaths)


def test_rows_that_are_slow_together_are_no_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "Patience", soon())

    def slow(x: int) -> int:
        time.sleep(0.1)
        return x

    for executor in ("processes", "threads"):
        found, report = rows(numbers(24).map(slow, "x", dtype=int).batch(12), executor=executor, workers=1, timeout=1)
        assert found == list(range(24))
        assert report.restarts == 0


@pytest.mark.parametrize("executor", ["threads", "inline"])
def test_a_thread_without_progress_ends_the_run_and_is_named(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "Patience", soon())
    go = threading.Event()

    def hangs(x: int) -> int:
        return x if x != 77 or go.wait(60) else -1

    try:
        match = r"no progress for \d s, since [\d:]+: the loop waits for .*map\(hangs\).* row 77 \(thread cedar"
        with pytest.raises(cedar.WorkerError, match=match):
            rows(numbers().map(hangs, "x", dtype=int).batch(10), executor=executor, timeout=0.5)
    finally:
        go.set()


@pytest.mark.parametrize("executor", ["threads", "inline"])
def test_what_takes_long_in_this_process_is_told_once(
    executor: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(parts, "Patience", soon(warn=0.1))
    said = threading.Event()

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.set()

    def waits(x: int) -> int:
        return x if x != 5 or said.wait(60) else -1

    handler = Told()
    logging.getLogger("cedar").addHandler(handler)
    try:
        assert rows(numbers(10).map(waits, "x", dtype=int).batch(5), executor=executor, workers=1)[0] == list(range(10))
    finally:
        logging.getLogger("cedar").removeHandler(handler)
    assert said.is_set()
    (record,) = [r for r in caplog.records if "no progress" in r.getMessage()]
    assert "at work: map(waits)" in record.getMessage()


def test_who_cannot_be_seen_is_not_looked_for() -> None:
    assert pulse(2**30) is None
    assert patiences.pulse(os.getpid()) is None or Path("/proc/self/task").is_dir()
