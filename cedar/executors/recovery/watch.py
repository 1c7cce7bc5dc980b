"""Watch: kill workers on this machine that are stuck or whose current call exceeds its time limit."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from cedar.executors.base import OwnWorker
from cedar.executors.recovery.board import AttemptBoard, process_board
from cedar.executors.recovery.patience import Patience, StallTimer, pulse, why_stopped
from cedar.executors.recovery.task import SupervisedTask
from cedar.operators.marks import SlotAddress, SlotReading


class WorkerWatch:
    """Watches the workers of one run. ``Recovery`` handles the workers that it kills like other lost workers."""

    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self._still = StallTimer(patience.clock, patience.look)

    def look(self, members: Iterable[OwnWorker], tasks: Sequence[SupervisedTask]) -> None:
        """Check all workers once. Call this at least every ``patience.look`` seconds.

        A process is running if its threads switch context, and a task makes progress if its mark changes.

        Args:
            members: the executor's own worker processes.
            tasks: the tasks in progress. Other processes on this machine that wrote their marks are checked too.
        """
        at = {task: seen for task in tasks if (seen := _reading_of_other_process(task)) is not None}
        own = {member.pid: member for member in members}
        pids = {*own, *(seen.pid for seen in at.values())}
        pulses = {pid: beat for pid in pids if (beat := pulse(pid)) is not None}
        marks = {task: (seen.mark, seen.began, seen.pid) for task, seen in at.items()}
        seen_now: dict[Any, object] = {**pulses, **marks}
        still = self._still.look(seen_now)
        for task, seen in at.items():
            self._end_late(task, seen, still[task])
        for pid, beat in pulses.items():
            if why := why_stopped(beat, still[pid], self.patience, pid in own):
                self._end_stopped(why, own.get(pid), {task: seen for task, seen in at.items() if seen.pid == pid})

    def _end_late(self, task: SupervisedTask, seen: SlotReading, still: float) -> None:
        """Kill a task's worker if a call exceeds its limit, or if it made no progress within the loader's timeout."""
        now, timeout = time.monotonic(), self.patience.timeout
        if task.killed or task.silent:
            return
        if seen.overdue(now):
            task.killed = now if _kill(task.place, seen) else 0.0
        elif timeout is not None and still > max(timeout, seen.limit) and _kill(task.place, seen):
            task.silent = f"no progress within timeout={timeout:g} s"

    def _end_stopped(self, why: str, member: OwnWorker | None, at: dict[SupervisedTask, SlotReading]) -> None:
        for task in at:
            task.ended = why
        if member is not None:
            member.kill(why)
        for task, seen in at.items():
            _kill(task.place, seen)


def _reading_of_other_process(task: SupervisedTask) -> SlotReading | None:
    """Return what a task's slot contains if another process on this machine wrote it; otherwise None."""
    place = task.place
    seen = None if place is None else process_board().read(place)
    return None if seen is None or seen.pid == os.getpid() else seen


def _kill(place: SlotAddress | None, seen: SlotReading) -> bool:
    """Kill the process that wrote a mark; return False if the slot has a newer mark."""
    board: AttemptBoard = process_board()
    if place is None:
        return False
    with suppress(OSError):
        if not hasattr(os, "pidfd_open"):
            os.kill(seen.pid, signal.SIGKILL)
            return True
        process = os.pidfd_open(seen.pid)
        try:
            if board.read(place) == seen:  # then the pid still belongs to the process that wrote the mark
                signal.pidfd_send_signal(process, signal.SIGKILL)
                return True
        finally:
            os.close(process)
    return False
