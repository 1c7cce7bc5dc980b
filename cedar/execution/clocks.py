"""Clocks that tell work from waiting for a core, so that a busy machine does not make operators look slow.

Linux counts, for each thread, the time in which it could have run but another had the core. Where it does not tell,
that time counts as if it were the operator's.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

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


def now() -> Reading:
    """Of the calling thread."""
    return Reading(time.perf_counter() - _crowded(), time.thread_time())


def _crowded() -> float:
    """Seconds that the calling thread waited for a core."""
    try:
        file: IO[str] | None = _own.file
    except AttributeError:
        file = None
        with suppress(OSError):
            file = Path("/proc/thread-self/schedstat").open()  # noqa: SIM115 - kept open while the thread lives
        _own.file = file
    if file is None:
        return 0.0
    try:
        file.seek(0)
        return int(file.read().split()[1]) * _NANO
    except (OSError, ValueError, IndexError):
        return 0.0
