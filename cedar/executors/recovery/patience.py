"""Patience: the limits of waiting without progress, and the watch that kills workers that exceed them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cedar.executors.processes.process import WorkerProcess
from cedar.executors.recovery.board import process_board
from cedar.executors.recovery.task import SupervisedTask
from cedar.operators.marks import SlotAddress, SlotReading

_MAX_STEP_SECONDS = 2.0  # a longer time between two checks means that the checking process itself was stopped


@dataclass(frozen=True)
class Patience:
    """Limits in seconds for tasks and processes that make no progress.

    Args:
        timeout: time without progress after which a worker is killed and its task retried, or the run ends; None
            means no limit.
        warn: time without progress after which a warning names what the run is waiting for.
        stopped: time after which a process that was stopped by a signal is killed.
        frozen: time after which a worker is killed if none of its threads ran, although one wakes up every second.
        look: time between two checks.
        clock: returns the current time in seconds, which never decreases.
    """

    timeout: float | None = None
    warn: float = 30.0
    stopped: float = 2.0
    frozen: float = 15.0
    look: float = 1.0
    clock: Callable[[], float] = time.monotonic


class StallTimer:
    """Measures for how long states have not changed.

    Time during which this process itself was stopped, for example by Ctrl-Z or a paused container, does not count.
    """

    def __init__(self, clock: Callable[[], float], look: float) -> None:
        self._clock = clock
        self._max_step = max(_MAX_STEP_SECONDS, 2 * look)
        self._last_look = clock()
        self._seen: dict[Hashable, tuple[object, float]] = {}

    def look(self, states: dict[Hashable, object]) -> dict[Hashable, float]:
        """Return the seconds since each state last changed. Keys missing from ``states`` are forgotten."""
        now = self._clock()
        passed, self._last_look = min(now - self._last_look, self._max_step), now
        before = self._seen
        self._seen = {
            key: (state, before[key][1] + passed if key in before and before[key][0] == state else 0.0)
            for key, state in states.items()
        }
        return {key: seconds for key, (_, seconds) in self._seen.items()}


@dataclass(frozen=True)
class Pulse:
    """A process's state according to ``/proc`` (R, S, D, T, ...), and the number of its threads' context switches."""

    state: str
    turns: int


def pulse(pid: int) -> Pulse | None:
    """Return the pulse of a process on this machine; None if unknown."""
    turns = 0
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")  # the process name may end inside a character
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # the thread has ended
                lines = (thread / "status").read_text(errors="replace").splitlines()
                turns += sum(int(line.rpartition(":")[2]) for line in lines if "ctxt_switches" in line)
    except OSError:
        return None
    return Pulse(stat.rpartition(")")[2].split()[0], turns)


def why_stopped(pulse: Pulse, seconds: float, patience: Patience, has_heartbeat: bool) -> str:
    """Return why a process with an unchanged pulse for ``seconds`` cannot continue by itself; "" if it may continue.

    A traced process (state t) is stopped by a debugger and may continue.

    Args:
        has_heartbeat: whether a thread of the process wakes up every second, even if other threads hold the GIL.
    """
    if pulse.state == "T" and seconds >= patience.stopped:
        return f"stopped by a signal, for {seconds:.0f} s"
    if has_heartbeat and pulse.state in "SDI" and seconds >= patience.frozen:
        return f"frozen: none of its threads ran for {seconds:.0f} s"
    return ""


class WorkerWatch:
    """Watches the workers of one run. ``Recovery`` handles the workers that it kills like other lost workers."""

    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self._still = StallTimer(patience.clock, patience.look)

    def look(self, members: Iterable[WorkerProcess], tasks: Sequence[SupervisedTask]) -> None:
        """Check all workers once. Call this at least every ``patience.look`` seconds.

        A process is running if its threads switch context, and a task makes progress if its mark changes.

        Args:
            members: the executor's own worker processes.
            tasks: the tasks in progress. Other processes on this machine that wrote their marks are checked too.
        """
        board, at = process_board(), {}
        for task in tasks:
            place = task.place
            seen = None if place is None else board.read(place)
            if seen is not None and seen.pid != os.getpid():
                at[task] = seen
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
                stopped = [task for task, seen in at.items() if seen.pid == pid]
                for task in stopped:
                    task.ended = why
                if pid in own:
                    own[pid].kill(why)
                for task in stopped:
                    _kill(task.place, at[task])

    def _end_late(self, task: SupervisedTask, seen: SlotReading, still: float) -> None:
        """Kill a task's worker if a call exceeds its limit, or if it made no progress within the loader's timeout."""
        now, timeout = time.monotonic(), self.patience.timeout
        if task.killed or task.silent:
            return
        if seen.overdue(now):
            task.killed = now if _kill(task.place, seen) else 0.0
        elif timeout is not None and still > max(timeout, seen.limit) and _kill(task.place, seen):
            task.silent = f"no progress within timeout={timeout:g} s"


def _kill(place: SlotAddress | None, seen: SlotReading) -> bool:
    """Kill the process that wrote a mark; return False if the slot has a newer mark."""
    if place is None:
        return False
    with suppress(OSError):
        if not hasattr(os, "pidfd_open"):
            os.kill(seen.pid, signal.SIGKILL)
            return True
        process = os.pidfd_open(seen.pid)
        try:
            if process_board().read(place) == seen:  # then the pid still belongs to the process that wrote the mark
                signal.pidfd_send_signal(process, signal.SIGKILL)
                return True
        finally:
            os.close(process)
    return False
