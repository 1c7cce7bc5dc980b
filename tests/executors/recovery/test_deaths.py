"""Deaths: what is told of them, and counted."""

from __future__ import annotations

import time
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool

import cedar
from cedar.executors.processes.pool import WorkerDied
from cedar.executors.recovery.deaths import Death, Deaths, is_lost


def test_deaths_are_told() -> None:
    row = cedar.core.errors.RowRef(0, 0, 7, url="a.parquet", epoch=2)
    deaths = Deaths()
    deaths.add(Death("exit code 3", "map(f)", row, 1, "bad row"))
    assert str(deaths.latest[0]) == "exit code 3, at map(f), a.parquet, row 7, epoch 2; the row is a bad row"
    assert str(Death("killed by SIGKILL", "map(f)")) == "killed by SIGKILL, at map(f); its task was run again"
    assert deaths.in_a_row == deaths.count == 1
    deaths.add(Death("its result does not arrive", "map(f)"), ended=False)
    assert (deaths.in_a_row, deaths.count) == (1, 2)
    deaths.done(0.0)
    assert (deaths.in_a_row, list(deaths.recoveries)) == (0, [])
    deaths.done(time.monotonic())
    assert len(deaths.recoveries) == 1


def test_what_counts_as_lost() -> None:
    killed = type("KilledWorker", (Exception,), {"__module__": "distributed.scheduler"})
    assert all(map(is_lost, [BrokenProcessPool(""), WorkerDied("exit code 1"), CancelledError(), killed("task")]))
    assert not any(map(is_lost, [ValueError(), cedar.WorkerError("it cannot be pickled"), KeyboardInterrupt()]))
