"""What a supervisor sees of its workers without asking: numbers in memory that they share, and what the kernel knows.

A worker writes what it does as it does it; a thread next to it writes the time. So a stopped process shows by the time,
and an endless loop by the progress, while the time still continues.
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
_USER, _SYSTEM = 11, 12  # fields of stat after the name; the first is the state


class Usage(NamedTuple):
    """Of a process, all its threads together."""

    runnable: bool  # a thread runs, or waits for a core
    seconds: float  # of cores, since it began


def usage(process: int) -> Usage:
    """Of a process of this machine; one that is gone wants no core. Needs Linux."""
    runnable, seconds = False, 0.0
    with suppress(OSError):  # it has ended
        fields = _stat(f"/proc/{process}/stat")
        seconds = (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICK
        for thread in os.listdir(f"/proc/{process}/task"):
            with suppress(OSError):  # that thread has ended
                runnable = runnable or _stat(f"/proc/{process}/task/{thread}/stat")[0] == "R"
    return Usage(runnable, seconds)


def _stat(path: str) -> list[str]:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


_LONGEST = 0.1


class Clock:
    """Seconds that were watched.

    A machine that stood still, or had no core to spare for its supervisor, had none for its workers either: what the
    watcher slept through is not a worker's silence. So limits adapt to the pace of the machine. ``longest``: seconds
    that count of the time between two looks, at most.

    Examples:
        >>> clock = Clock(0.1, iter([5.0, 5.05, 9.0]).__next__)
        >>> round(clock.look(), 2), round(clock.look(), 2)
        (0.05, 0.15)
    """

    def __init__(self, longest: float = _LONGEST, source: Callable[[], float] = time.monotonic) -> None:
        self._longest, self._source = longest, source
        self._last = source()
        self.now = 0.0

    def look(self) -> float:
        """The time by this clock, from now on ``now``; call often."""
        now = self._source()
        self.now += min(now - self._last, self._longest)
        self._last = now
        return self.now


_FIELDS = 9
_BEAT, _MOVES, _STEP, _AT, _STATE, _SLOWEST, _SINCE, _BEAT_CPU, _MOVE_CPU = range(_FIELDS)
_FADES, _TINY = 0.99, 1e-9  # what was slow long ago counts less and less
_START = 120.0  # seconds that a new worker has until its first sign, and for its first step
STARTING, RUNNING, WAITING = 0.0, 1.0, 2.0


class HeartbeatBoard:
    """Shared memory: a row per worker of this machine, and the newest generation."""

    def __init__(self, rows: int) -> None:
        self._memory = mmap.mmap(-1, 8 * (1 + rows * _FIELDS))
        self.numbers = memoryview(self._memory).cast("d")
        self._known: dict[int, tuple[float, float]] = {}  # the watcher's: numbers, and since when they are so

    @property
    def generation(self) -> int:
        return int(self.numbers[0])

    @generation.setter
    def generation(self, number: int) -> None:
        self.numbers[0] = number

    def start(self, row: int) -> None:
        """A worker is about to start there."""
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

    def move(self, row: int, step: int, at: int, done: Instruction, waiting_for: Worker | None) -> None:
        """The worker begins an instruction, or to wait."""
        base, now, numbers = 1 + row * _FIELDS, time.monotonic(), self.numbers
        slowest = numbers[base + _SLOWEST]
        if slowest and numbers[base + _STATE] == RUNNING:
            numbers[base + _SLOWEST] = max(slowest * _FADES, now - numbers[base + _SINCE])
        elif done.kind == "STEP" and at >= 0:
            numbers[base + _SLOWEST] = slowest or _TINY  # the first step of a process warms up, and tells nothing
        numbers[base + _STEP], numbers[base + _AT] = step, at
        waits = waiting_for is not None or done.kind == "ALL_REDUCE"
        numbers[base + _STATE] = WAITING if waits else RUNNING
        numbers[base + _SINCE] = now
        numbers[base + _MOVE_CPU] = time.process_time()
        numbers[base + _MOVES] += 1

    # ---- the supervisor's side ---------------------------------------------------------------------------------------

    def seen(self, row: int) -> tuple[int, int]:
        """The step that a worker is in, and the number of its instruction; -1 between lists."""
        base = 1 + row * _FIELDS
        return int(self.numbers[base + _STEP]), int(self.numbers[base + _AT])

    def hung(self, row: int, heartbeat: float, now: float, using: Callable[[], Usage]) -> str | None:
        """Why a worker counts as hung; None if it does not. Call often: it compares what it sees with what it saw.

        A worker that is only slow does not: an instruction may take ``heartbeat`` seconds, and five times as long as
        the slowest one that it has done. Nor does one that gets no core. ``now``: by the watcher's ``Clock``.
        """
        base, numbers = 1 + row * _FIELDS, self.numbers
        self._unchanged(base + _MOVES, now)
        limit = _START if numbers[base + _STATE] == STARTING else heartbeat
        if self._overdue(base + _BEAT, now, limit, base + _BEAT_CPU, using):
            return f"it gave no sign for {limit:g} s"
        limit = max(limit, 5 * numbers[base + _SLOWEST]) if numbers[base + _SLOWEST] else _START
        if numbers[base + _STATE] == RUNNING and self._overdue(base + _MOVES, now, limit, base + _MOVE_CPU, using):
            return f"it made no progress for {limit:.3g} s and waited for no other worker"
        return None

    def _overdue(self, at: int, now: float, limit: float, cpu: int, using: Callable[[], Usage]) -> bool:
        """Whether a number has not changed for too long, though the worker had cores enough or wanted none."""
        if self._unchanged(at, now) <= limit:
            return False
        runnable, seconds = using()
        starved = runnable and seconds - self.numbers[cpu] < limit / 2
        return not starved and self._unchanged(at, now) > limit  # it may have got one just now

    def _unchanged(self, at: int, now: float) -> float:
        """For how long this number has been what it is."""
        value, since = self._known.get(at, (None, now))
        if self.numbers[at] != value:
            self._known[at] = self.numbers[at], now
            return 0.0
        return now - since
