"""Memory limits of a run: how far it may read ahead, how much it may cache, and how much each process uses.

Limits are derived from the measured memory of the whole process tree. They only change how many tasks are in progress
and whether rows are cached or recomputed, so they do not affect results.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from cedar.core import buffers, process
from cedar.core.limits import size_text
from cedar.store.cache import Memory

_AHEAD_DIVISOR = 8  # a stage may use 1/8 of the free memory, since other stages and tasks need memory too
_PAUSE_FACTOR = 50  # at most 1/50 of the time is spent on measuring memory
_NEAR_LIMIT = 7 / 8  # fraction of the limit above which unused memory is returned to the system
_WARN_AFTER = 1.0  # seconds above the limit before a warning
_log = logging.getLogger("cedar")


@dataclass(frozen=True)
class MemoryAllowance:
    """How much memory parts of a run may use.

    Args:
        ahead: bytes of results that each stage may compute ahead, in addition to one task.
        cache: bytes that ``cache()`` may store in the memory of this process.
        idle: whether freed buffers may be kept for reuse.
    """

    ahead: int
    cache: int
    idle: bool


def allowed(limit: int, used: int, cache: int) -> MemoryAllowance:
    """Return the allowance for a memory limit, the bytes in use, and the bytes of them that the cache uses.

    Examples:
        >>> allowed(1000, 600, 200)
        MemoryAllowance(ahead=50, cache=250, idle=True)
        >>> allowed(1000, 1100, 200)
        MemoryAllowance(ahead=0, cache=100, idle=False)
    """
    free = limit - used
    ahead = max(free, 0) // _AHEAD_DIVISOR
    return MemoryAllowance(ahead, max(0, cache + (ahead if free > 0 else free)), used <= limit * _NEAR_LIMIT)


class MemoryBound:
    """Enforces the memory limit of a loader's budget, by limiting how far tasks run ahead and the size of the cache.

    Args:
        limit: bytes that this process and its descendants may use.
        cache: the row cache of this process.
        queued: returns the bytes of results that are finished but not delivered yet.
        measure: returns the bytes of each process; see ``cedar.core.process.memory_by_process``.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        limit: int,
        cache: Memory,
        queued: Callable[[], int],
        measure: Callable[[], Mapping[int, int]] = process.memory_by_process,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.limit = limit
        self._cache, self._queued, self._measure, self._clock = cache, queued, measure, clock
        self._next = 0.0
        self._beyond_since: float | None = None  # time at which memory use began to exceed the limit
        self._warned = False
        self._allowed = MemoryAllowance(limit // _AHEAD_DIVISOR, limit, True)
        self.peak = 0
        self.parts: dict[str, int] = {}  # bytes of each process at the peak, if the peak exceeded the limit

    def ahead(self, most: int, size: int) -> int:
        """Return how many tasks to keep in flight, from 1 to ``most``; ``size`` is bytes per result, 0 if unknown."""
        self._update()
        return max(1, min(most, self._allowed.ahead // size if size else 2))

    def _update(self) -> None:
        began = self._clock()
        if began < self._next:
            return
        sizes = self._measure()
        total, cached = sum(sizes.values()), self._cache.nbytes
        self._allowed = allowed(self.limit, total, cached)
        self._cache.limit(self._allowed.cache)
        if not self._allowed.idle:
            buffers.release_idle()
            pa.default_memory_pool().release_unused()
        if total > max(self.peak, self.limit):
            self.parts = named(sizes, cached, self._queued())
        self.peak = max(self.peak, total)
        self._warn_if_beyond(total, began)
        self._next = began + _PAUSE_FACTOR * (self._clock() - began)

    def _warn_if_beyond(self, total: int, now: float) -> None:
        if total <= self.limit:
            self._beyond_since = None
        elif self._beyond_since is None:
            self._beyond_since = now
        elif now - self._beyond_since >= _WARN_AFTER and not self._warned:
            self._warned = True
            _log.warning("%s; the run continues with one task at a time for each stage", self.note())

    def note(self) -> str:
        """Return a line for reports: the peak memory, and its parts if it exceeded the limit."""
        allows = f"of Budget(memory={size_text(self.limit)!r})"
        if self.peak <= self.limit:
            return f"memory: at most {size_text(self.peak)} {allows}"
        return f"memory: {size_text(self.peak)} {allows}, exceeded: {describe(self.parts)}"


def named(sizes: Mapping[int, int], cached: int, queued: int) -> dict[str, int]:
    """Return bytes by name: of this process and known parts of it, its workers, other processes, and shared files.

    Examples:
        >>> named({4: 10, process.FILES: 2}, 0, 0)["files"]
        2
    """
    from cedar.executors import processes

    workers = {member.pid for pool in processes.pools() if not pool.closed for member in pool.members()}
    parts = {"this process": sizes.get(os.getpid(), 0)}
    known = {"cache()": cached, "results not yet taken": queued, "memory kept for reuse": buffers.idle()}
    parts |= {f"this process: {name}": size for name, size in known.items() if size}
    for pid, size in sorted(sizes.items()):
        if pid not in (os.getpid(), process.FILES):
            parts[f"{'worker' if pid in workers else 'process'} {pid}"] = size
    return parts | {"files": sizes.get(process.FILES, 0)}


def describe(parts: Mapping[str, int]) -> str:
    """Return the parts as one line of text, largest first."""
    return ", ".join(f"{name} {size_text(size)}" for name, size in sorted(parts.items(), key=lambda part: -part[1]))
