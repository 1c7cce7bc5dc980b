"""Pools: what comes back of the calls that are submitted, also where workers die or are ended."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from cedar.executors.processes.pool import Pool
from cedar.executors.processes.process import WorkerDied
from tests.executors.processes.watching import gone
from tests.waiting import eventually


def test_whatever_is_raised_comes_through(pool: Pool) -> None:
    def raises() -> None:
        raise KeyError("name")

    with pytest.raises(KeyError, match="name") as caught:
        pool.submit(raises).result()
    assert "in raises" in "".join(caught.value.__notes__)
    with pytest.raises(SystemExit):
        pool.submit(sys.exit, 3).result()
    assert pool.submit(abs, -1).result() == 1


def test_a_death_fails_its_task_alone(one: Pool) -> None:
    one.submit(int).result()
    dying = one.submit(os._exit, 3)
    after = [one.submit(abs, -i) for i in range(5)]
    with pytest.raises(WorkerDied, match="exit code 3"):
        dying.result()
    assert [f.result() for f in after] == list(range(5))


def test_a_worker_that_died_while_it_had_no_work_is_not_ready() -> None:
    pool = Pool(1)
    try:
        pid = pool.submit(os.getpid).result()
        assert pool.ready() == 1
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: pool.ready() == 0)
        assert pool.submit(abs, -1).result() == 1
    finally:
        pool.shutdown()


def test_shutting_down_ends_the_workers_at_once() -> None:
    pool = Pool(1)
    pid = pool.submit(os.getpid).result()
    busy = pool.submit(time.sleep, 600)
    waiting = [pool.submit(int) for _ in range(3)]
    assert eventually(busy.running)
    pool.shutdown()
    assert isinstance(busy.exception(), WorkerDied)
    assert all(f.cancelled() or isinstance(f.exception(), WorkerDied) for f in waiting)
    assert gone(pid)
    with pytest.raises(RuntimeError):
        pool.submit(int)
