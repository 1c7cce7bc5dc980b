"""Watches: processes that stand still are ended, and calls that take too long."""

from __future__ import annotations

import os
import time

import pytest

from cedar.executors.processes.pool import Pool
from cedar.executors.recovery import Deaths, Recovery, TaskWork
from cedar.executors.recovery import recovery as recovering
from cedar.executors.recovery import watch as watching
from cedar.executors.recovery.board import AttemptBoard
from cedar.executors.recovery.patience import Patience, Pulse
from cedar.executors.recovery.watch import WorkerWatch
from cedar.operators.marks import Mark, SlotReading
from cedar.tasks.chain import Program
from tests.executors.recovery.clock import Clock


def test_a_member_that_is_frozen_is_ended_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    class Member:
        pid, why = 4_000_000, ""

        def kill(self, why: str = "") -> None:
            self.why = why

    clock, member, turns = Clock(), Member(), iter([1, 2, 3, 3, 3, 3])
    monkeypatch.setattr("cedar.executors.recovery.watch.pulse", lambda pid: Pulse("S", next(turns)))
    watch = WorkerWatch(Patience(frozen=3.0, clock=clock))
    for now in range(6):
        assert not member.why
        clock.now = now
        watch.look([member], [])
    assert member.why == "frozen: none of its threads ran for 3 s"


def test_a_row_that_ends_just_in_time_spares_its_worker_and_not_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def at(row: int, limit: float) -> SlotReading:
        return SlotReading(Mark(0, 1, (0, 0, row, -1, 0, 0)), pid, began=0.0, limit=limit)

    pool = Pool(1)
    pid = pool.submit(os.getpid).result()
    # The first row is over its time, and then the second one is at hand; the third one hangs.
    looks = iter([at(1, 1e-9), at(2, 1e9), at(3, 1e-9), at(3, 1e-9)])
    board = AttemptBoard()
    monkeypatch.setattr(board, "read", lambda _: next(looks))
    monkeypatch.setattr(recovering, "process_board", lambda: board)
    monkeypatch.setattr(watching, "process_board", lambda: board)
    recovery = Recovery(lambda: pool, Deaths(), marks=True)
    monkeypatch.setattr(recovery, "_start", lambda: None)
    work = TaskWork(Program((), 0), lambda submit, _: submit(time.sleep, 600), limits=(1.0,))
    recovery.submit(work)
    (task,) = recovery._tasks
    recovery._look()
    assert not task.killed
    recovery._look()
    assert task.killed
    task.cancel()
    recovery.close()
    pool.shutdown()
