"""Heartbeats: a supervisor monitors its workers through shared memory and ``/proc``, without messages.

A worker writes which instruction it starts, and a thread of the worker regularly writes the time. If the process is
stopped, the time no longer changes. In an endless loop, the time still changes, but the instruction does not.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from cedar.trainers.resilient.schedule import Instruction, Worker

_TICK = os.sysconf("SC_CLK_TCK")
_USER, _SYSTEM = 11, 12  # indices into the fields after the name in /proc/PID/stat


class Usage(NamedTuple):
    """The CPU usage of a process, including all its threads."""

    runnable: bool  # whether a thread is running or waiting for a core
    seconds: float  # CPU seconds since the process started


def usage(process: int) -> Usage:
    """Return the CPU usage of a process on this machine; zero if the process has ended. Needs Linux."""
    runnable, seconds = False, 0.0
    with suppress(OSError):  # the process has ended
        fields = _stat(f"/proc/{process}/stat")
        seconds = (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICK
        for thread in os.listdir(f"/proc/{process}/task"):
            with suppress(OSError):  # the thread has ended
                runnable = runnable or _stat(f"/proc/{process}/task/{thread}/stat")[0] == "R"
    return Usage(runnable, seconds)


def _stat(path: str) -> list[str]:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


_MAX_INTERVAL = 0.1


class Clock:
    """A clock that counts only the time during which the supervisor was able to run.

    If the machine is suspended, or too busy to run the supervisor, it probably does not run the workers either. The
    clock leaves this time out, so that workers are not considered hung because of it. ``longest``: max seconds to count
    between two calls of ``update``.

    Examples:
        >>> clock = Clock(0.1, iter([5.0, 5.05, 9.0]).__next__)
        >>> round(clock.update(), 2), round(clock.update(), 2)
        (0.05, 0.15)
    """

    def __init__(self, longest: float = _MAX_INTERVAL, source: Callable[[], float] = time.monotonic) -> None:
        self._longest, self._source = longest, source
        self._last = source()
        self.now = 0.0

    def update(self) -> float:
        """Update ``now`` and return it; call often."""
        now = self._source()
        self.now += min(now - self._last, self._longest)
        self._last = now
        return self.now


_FIELDS = 9
_BEAT, _MOVES, _STEP, _AT, _STATE, _SLOWEST, _SINCE, _BEAT_CPU, _MOVE_CPU = range(_FIELDS)
_DECAY, _TINY = 0.99, 1e-9  # the recorded max instruction time decays, so that old slow instructions count less
_START = 120.0  # max seconds until a new worker's first heartbeat, and for an instruction of its first step
STARTING, RUNNING, WAITING = 0.0, 1.0, 2.0


class HeartbeatBoard:
    """Shared memory with the newest generation's number and a row for each worker of this machine."""

    def __init__(self, rows: int) -> None:
        self._memory = mmap.mmap(-1, 8 * (1 + rows * _FIELDS))
        self.numbers = memoryview(self._memory).cast("d")
        self._known: dict[int, tuple[float, float]] = {}  # supervisor: by index, last value and when it changed

    @property
    def generation(self) -> int:
        return int(self.numbers[0])

    @generation.setter
    def generation(self, number: int) -> None:
        self.numbers[0] = number

    def start(self, row: int) -> None:
        """Reset a row for a worker that is about to start."""
        base = 1 + row * _FIELDS
        for field in range(_FIELDS):
            self.numbers[base + field] = 0.0
            self._known.pop(base + field, None)
        self.numbers[base + _BEAT] = self.numbers[base + _SINCE] = time.monotonic()

    # ---- the worker's side -------------------------------------------------------------------------------------------

    def beat(self, row: int) -> None:
        base = 1 + row * _FIELDS
        self.numbers[base + _BEAT_CPU] = time.process_time()
        self.numbers[base + _BEAT] = time.monotonic()

    def begin_instruction(self, row: int, step: int, at: int, done: Instruction, waiting_for: Worker | None) -> None:
        """Record that the worker starts an instruction, or starts to wait."""
        base, now, numbers = 1 + row * _FIELDS, time.monotonic(), self.numbers
        slowest = numbers[base + _SLOWEST]
        if slowest and numbers[base + _STATE] == RUNNING:
            numbers[base + _SLOWEST] = max(slowest * _DECAY, now - numbers[base + _SINCE])
        elif done.kind == "STEP" and at >= 0:
            numbers[base + _SLOWEST] = slowest or _TINY  # instruction times of the first step are ignored (warm-up)
        numbers[base + _STEP], numbers[base + _AT] = step, at
        waits = waiting_for is not None or done.kind == "ALL_REDUCE"
        numbers[base + _STATE] = WAITING if waits else RUNNING
        numbers[base + _SINCE] = now
        numbers[base + _MOVE_CPU] = time.process_time()
        numbers[base + _MOVES] += 1

    # ---- the supervisor's side ---------------------------------------------------------------------------------------

    def position(self, row: int) -> tuple[int, int]:
        """Return a worker's current step and the index of its instruction; -1 between instruction lists."""
        base = 1 + row * _FIELDS
        return int(self.numbers[base + _STEP]), int(self.numbers[base + _AT])

    def hang_reason(self, row: int, heartbeat: float, now: float, get_usage: Callable[[], Usage]) -> str | None:
        """Return why a worker is considered hung, or None. Call this often, since it compares successive values.

        An instruction may take ``heartbeat`` seconds, or five times as long as the worker's slowest one so far. A
        worker that is waiting for CPU time is not considered hung. ``now``: time of the supervisor's ``Clock``.
        """
        base, numbers = 1 + row * _FIELDS, self.numbers
        self._unchanged(base + _MOVES, now)
        first = max(heartbeat, _START)
        limit = first if numbers[base + _STATE] == STARTING else heartbeat
        if self._overdue(base + _BEAT, now, limit, base + _BEAT_CPU, get_usage):
            return f"it gave no sign for {limit:g} s"
        limit = max(limit, 5 * numbers[base + _SLOWEST]) if numbers[base + _SLOWEST] else first
        if numbers[base + _STATE] == RUNNING and self._overdue(base + _MOVES, now, limit, base + _MOVE_CPU, get_usage):
            return f"it made no progress for {limit:.3g} s and waited for no other worker"
        return None

    def _overdue(self, at: int, now: float, limit: float, cpu: int, get_usage: Callable[[], Usage]) -> bool:
        """Whether a value has not changed for ``limit`` seconds, although the worker got the CPU time it needs."""
        if self._unchanged(at, now) <= limit:
            return False
        runnable, seconds = get_usage()
        starved = runnable and seconds - self.numbers[cpu] < limit / 2
        return not starved and self._unchanged(at, now) > limit  # the value may have changed since the first check

    def _unchanged(self, at: int, now: float) -> float:
        """Return for how many seconds the value at index ``at`` has not changed."""
        value, since = self._known.get(at, (None, now))
        if self.numbers[at] != value:
            self._known[at] = self.numbers[at], now
            return 0.0
        return now - since
