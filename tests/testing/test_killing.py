"""Faults to put in: workers that are killed, functions that end or hang their process."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import pytest

import cedar
import cedar.testing
from tests.testing.toy_numbers import numbers

pytestmark = [pytest.mark.heavy, pytest.mark.waits]


def test_workers_are_killed_and_nothing_is_lost() -> None:
    p = numbers(3000).map(abs, "x", dtype=int).shuffle(seed=1).batch(16)
    with p.loader(executor="inline") as loader:
        whole = [batch["x"].tolist() for batch in loader]
    with cedar.testing.kill_workers(rate=15, seed=5, most=4) as kills, p.loader(executor="processes", workers=2) as run:
        for _ in range(30):
            assert [batch["x"].tolist() for batch in run] == whole
            run.set_epoch(0)
            if kills.count == 4:
                break
        report = run.report()
    assert kills.count == len(kills.times) == 4
    assert report.restarts <= 4
    assert all("SIGKILL" in death for death in report.deaths)
    assert not any(thread.name == "cedar-killer" for thread in threading.enumerate())


def test_what_runs_after_it_loses_no_worker() -> None:
    p = cedar.from_items([{"x": i} for i in range(400)]).map(abs, "x", dtype=int).batch(20)
    for seed in range(5):
        with p.loader(executor="processes", workers=2, plan="off") as run:  # its workers are there for the next one
            assert sum(len(batch["x"]) for batch in run) == 400
        with cedar.testing.kill_workers(rate=1e6, seed=seed, most=1) as kills:
            while not kills.count:
                time.sleep(0)
        with p.loader(executor="processes", workers=2, plan="off") as run:
            assert sum(len(batch["x"]) for batch in run) == 400
        assert run.report().restarts == 0


def test_a_rate_is_above_zero() -> None:
    with pytest.raises(cedar.PipelineError, match=r"kill_workers\(rate=0\)"), cedar.testing.kill_workers(rate=0):
        pass


@pytest.mark.parametrize(
    ("call", "ends"),
    [("crash()", -11), ("crash('exit')", 3), ("crash('kill')", -9), ("crash('memory')", -9), ("hang('lock')", None)],
)
def test_trouble_is_what_it_says(call: str, ends: int | None) -> None:
    code = f"import cedar.testing as t; print(1, flush=True); t.{call}"
    process: Any = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert process.stdout.read(1) == b"1"
        if ends is None:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.3)
        else:
            assert process.wait(60) == ends
    finally:
        process.kill()
        process.communicate()


def test_a_way_that_is_not_there() -> None:
    for call in (cedar.testing.crash, cedar.testing.hang):
        with pytest.raises(cedar.PipelineError, match="unknown way"):
            call("slowly")
