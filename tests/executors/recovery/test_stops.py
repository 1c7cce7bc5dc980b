"""Stops: workers that stop without dying, and tasks that do not make progress."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cedar
import cedar.testing
from cedar.engine.delivery import parts
from cedar.executors import processes
from cedar.executors.recovery.waiting import Patience
from tests.executors.recovery.clock import LINUX

pytestmark = [pytest.mark.heavy, pytest.mark.waits]

WORKERS = 2


def soon(**limits: float) -> Callable[..., Patience]:
    """As the loader makes it, with short times."""
    return lambda timeout: Patience(timeout, **({"look": 0.02, "stopped": 0.1, "frozen": 0.5} | limits))


def numbers(n: int = 200) -> cedar.Pipeline:
    return cedar.from_items([{"x": i} for i in range(n)])


def rows(pipeline: cedar.Pipeline, **options: Any) -> tuple[list[int], cedar.Report]:
    with pipeline.loader(**({"executor": "processes", "workers": WORKERS, "plan": "off"} | options)) as loader:
        return [x for batch in loader for x in batch["x"].tolist()], loader.report()


# ---- waiting ---------------------------------------------------------------------------------------------------------


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

    class Reported(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.set()

    def waits(x: int) -> int:
        return x if x != 5 or said.wait(60) else -1

    handler = Reported()
    logging.getLogger("cedar").addHandler(handler)
    try:
        assert rows(numbers(10).map(waits, "x", dtype=int).batch(5), executor=executor, workers=1)[0] == list(range(10))
    finally:
        logging.getLogger("cedar").removeHandler(handler)
    assert said.is_set()
    (record,) = [r for r in caplog.records if "no progress" in r.getMessage()]
    assert "at work: map(waits)" in record.getMessage()
