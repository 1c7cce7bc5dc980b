"""Clocks that tell work from waiting for a core, so that a busy machine does not make operators look slow.

Linux counts, for each thread, the time in which it could have run but another had the core. Where it does not tell,
that time counts as if it were the operator's.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

_NANO = 1e-9
_own = threading.local()


@dataclass(frozen=True)
class Reading:
    """Seconds of one thread: by the clock without waiting for a core, and of work."""

    wall: float
    cpu: float

    def since(self, earlier: Reading) -> Reading:
        """What passed between two readings."""
        return Reading(self.wall - earlier.wall, self.cpu - earlier.cpu)

    def plus(self, other: Reading) -> Reading:
        """Both together."""
        return Reading(self.wall + other.wall, self.cpu + other.cpu)


def ship(since: float) -> None:
    """What began then was all for sending rows to this worker, or from it; ``shipped`` tells of it."""
    _own.ship = getattr(_own, "ship", 0.0) + time.perf_counter() - since


def shipped() -> float:
    """Seconds that this thread has taken for sending since it was asked last."""
    seconds: float = getattr(_own, "ship", 0.0)
    _own.ship = 0.0
    return seconds


def crowded_lately() -> float:
    """Seconds that the calling thread waited for a core since it was asked last."""
    seconds = crowded()
    before, _own.crowded = getattr(_own, "crowded", seconds), seconds
    return seconds - before


def now() -> Reading:
    """Of the calling thread."""
    return Reading(time.perf_counter() - crowded(), time.thread_time())


def spent_by(threads: Iterable[threading.Thread]) -> tuple[float, float]:
    """Seconds that other threads had a core, and that they waited for one; (0, 0) where the system does not tell."""
    cpu = crowded = 0.0
    for thread in threads:
        with suppress(OSError, ValueError, IndexError), open(f"/proc/self/task/{thread.native_id}/schedstat") as file:
            had, waited, *_ = map(int, file.read().split())
            cpu, crowded = cpu + had * _NANO, crowded + waited * _NANO
    return cpu, crowded


def crowded() -> float:
    """Seconds that the calling thread waited for a core."""
    try:
        counters: _ThreadCounters = _own.counters
    except AttributeError:
        counters = _own.counters = _ThreadCounters()
    return counters.waited()


class _ThreadCounters:
    """What the system counts of the thread that makes this; open for as long as the thread lives."""

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
