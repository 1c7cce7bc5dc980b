"""Clocks that exclude time spent waiting for a core, so that operators do not appear slower on a busy machine.

Linux counts how long each thread was ready to run but had no core. On other systems, the operator's time includes
that waiting time.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

_NANO = 1e-9
_thread = threading.local()


@dataclass(frozen=True)
class Reading:
    """Seconds of one thread: wall time without waiting for a core, and CPU time."""

    wall: float
    cpu: float

    def since(self, earlier: Reading) -> Reading:
        """Return the difference to an earlier reading."""
        return Reading(self.wall - earlier.wall, self.cpu - earlier.cpu)

    def plus(self, other: Reading) -> Reading:
        """Return the sum of two readings."""
        return Reading(self.wall + other.wall, self.cpu + other.cpu)


def ship(since: float) -> None:
    """Add the time since ``since`` to the time that this thread spent sending rows to or from this worker."""
    _thread.ship = getattr(_thread, "ship", 0.0) + time.perf_counter() - since


def shipped() -> float:
    """Return the seconds that ``ship`` has added in this thread since the last call of this function."""
    seconds: float = getattr(_thread, "ship", 0.0)
    _thread.ship = 0.0
    return seconds


def seconds_waited_for_core() -> float:
    """Return the seconds that the calling thread has waited for a core since its last call of this function."""
    seconds = crowded()
    before, _thread.crowded = getattr(_thread, "crowded", seconds), seconds
    return seconds - before


def now() -> Reading:
    """Return the reading of the calling thread."""
    return Reading(time.perf_counter() - crowded(), time.thread_time())


def spent_by(threads: Iterable[threading.Thread]) -> tuple[float, float]:
    """Return the seconds in which the threads had a core, and in which they waited for one; (0, 0) if not counted."""
    cpu = crowded = 0.0
    for thread in threads:
        with suppress(OSError, ValueError, IndexError), open(f"/proc/self/task/{thread.native_id}/schedstat") as file:
            had, waited, *_ = map(int, file.read().split())
            cpu, crowded = cpu + had * _NANO, crowded + waited * _NANO
    return cpu, crowded


def crowded() -> float:
    """Return the total seconds that the calling thread has waited for a core."""
    try:
        counters: _ThreadCounters = _thread.counters
    except AttributeError:
        counters = _thread.counters = _ThreadCounters()
    return counters.waited()


class _ThreadCounters:
    """The system's counters of the thread that creates this object. The file stays open while the thread exists."""

    def __init__(self) -> None:
        self._file: int | None = None
        with suppress(OSError):
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def waited(self) -> float:
        if self._file is None:
            return 0.0
        try:
            return int(os.pread(self._file, 64, 0).split()[1]) * _NANO
        except (OSError, ValueError, IndexError):
            return 0.0

    def __del__(self) -> None:
        if self._file is not None:
            os.close(self._file)
