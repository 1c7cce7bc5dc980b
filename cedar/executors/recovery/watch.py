"""Watch: ends worker processes of this machine that stand still, and calls that take too long."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from typing import Protocol

from cedar.executors.recovery.board import Board, the_board
from cedar.executors.recovery.patience import Patience, StallTimer, pulse, why_stopped
from cedar.executors.recovery.task import Task
from cedar.operators.marks import SlotAddress, SlotReading


class Member(Protocol):
    """A worker process that an executor of this machine started itself."""

    pid: int

    def kill(self, why: str = "") -> None:
        """End it; ``why`` becomes the error of its tasks."""


class Watch:
    """Of one run. What it ends is lost like any other process: recovery does the rest."""

    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self._processes = StallTimer(patience.clock, patience.look)
        self._tasks = StallTimer(patience.clock, patience.look)

    def look(self, members: Iterable[Member], tasks: Sequence[Task]) -> None:
        """Now; to be called every ``patience.look`` seconds, or more often.

        Args:
            members: processes of the executor that can be seen from here.
            tasks: in progress; what their marks say of other processes of this machine is looked at, too.
        """
        at = {task: seen for task in tasks if (seen := _elsewhere(task)) is not None}
        self._end_overdue(at)
        self._end_stopped({member.pid: member for member in members}, at)
        self._end_silent(at)

    def _end_overdue(self, at: dict[Task, SlotReading]) -> None:
        """A function has a time limit of its own."""
        now = time.monotonic()
        for task, seen in at.items():
            if not task.killed and seen.overdue(now) and _kill(task.place, seen):
                task.killed = now

    def _end_stopped(self, members: dict[int, Member], at: dict[Task, SlotReading]) -> None:
        pids = {*members, *(seen.pid for seen in at.values())}
        pulses = {pid: beat for pid in pids if (beat := pulse(pid)) is not None}
        still = self._processes.look(dict[Hashable, object](pulses.items()))
        for pid, beat in pulses.items():
            why = why_stopped(beat, still[pid], self.patience, pid in members)
            if not why:
                continue
            its = {task: seen for task, seen in at.items() if seen.pid == pid}
            for task in its:
                task.ended = why
            if pid in members:
                members[pid].kill(why)
            for task, seen in its.items():
                _kill(task.place, seen)

    def _end_silent(self, at: dict[Task, SlotReading]) -> None:
        """The loader has a limit on the time without progress; a function's own one may be longer."""
        timeout = self.patience.timeout
        if timeout is None:
            return
        still = self._tasks.look({task: (seen.mark, seen.began, seen.pid) for task, seen in at.items()})
        for task, seen in at.items():
            late = still[task] > max(timeout, seen.limit)
            if late and not (task.killed or task.silent) and _kill(task.place, seen):
                task.silent = f"no progress within timeout={timeout:g} s"


def _elsewhere(task: Task) -> SlotReading | None:
    """What a task's slot says, where another process of this machine wrote it."""
    place = task.place
    seen = None if place is None else the_board().read(place)
    return None if seen is None or seen.pid == os.getpid() else seen


def _kill(place: SlotAddress | None, seen: SlotReading) -> bool:
    """End the process that wrote a mark; False where it is not at it any more."""
    board: Board = the_board()
    if place is None:
        return False
    with suppress(OSError):
        if not hasattr(os, "pidfd_open"):
            os.kill(seen.pid, signal.SIGKILL)
            return True
        process = os.pidfd_open(seen.pid)
        try:
            if board.read(place) == seen:  # so it lived when its number was looked up, and is no other
                signal.pidfd_send_signal(process, signal.SIGKILL)
                return True
        finally:
            os.close(process)
    return False
