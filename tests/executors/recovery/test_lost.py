"""Which failures say that a process is gone."""

from __future__ import annotations

from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool

import cedar
from cedar.executors.processes.process import WorkerDied
from cedar.executors.recovery import is_lost


def test_what_counts_as_lost() -> None:
    killed = type("KilledWorker", (Exception,), {"__module__": "distributed.scheduler"})
    assert all(map(is_lost, [BrokenProcessPool(""), WorkerDied("exit code 1"), CancelledError(), killed("task")]))
    assert not any(map(is_lost, [ValueError(), cedar.WorkerError("it cannot be pickled"), KeyboardInterrupt()]))
