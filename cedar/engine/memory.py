"""The memory that a run may take: how far it reads ahead, what its cache may keep, and who holds what.

What is held is measured, of the whole tree of processes, and what follows from it is a function of that: how many tasks
are in progress, and whether rows are kept or computed again, shows in no result.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from cedar.cache.memory import Memory
from cedar.core import buffers, memory
from cedar.core.sizes import size_text
from cedar.executors import processes

_PART = 8  # of what is free, a stage may have so little in progress: stages follow each other, and a task holds more
_RARELY = 50  # a look takes a fiftieth of the time, at most
_NEAR = 7 / 8  # of the bound, from where on memory that lies idle is given back
_STAYS = 1.0  # seconds beyond the bound before a warning
_log = logging.getLogger("cedar")


@dataclass(frozen=True)
class MemoryAllowance:
    """What may be had of the memory.

    Args:
        ahead: bytes of results that each stage may have in progress, next to one task.
        cache: bytes that ``cache()`` may hold in this process.
        idle: memory that lies idle may stay.
    """

    ahead: int
    cache: int
    idle: bool


def allowed(limit: int, used: int, cache: int) -> MemoryAllowance:
    """What a run may have, where so much is held, of it by its cache.

    Examples:
        >>> allowed(1000, 600, 200)
        MemoryAllowance(ahead=50, cache=250, idle=True)
        >>> allowed(1000, 1100, 200)
        MemoryAllowance(ahead=0, cache=100, idle=False)
    """
    free = limit - used
    ahead = max(free, 0) // _PART
    return MemoryAllowance(ahead, max(0, cache + (ahead if free > 0 else free)), used <= limit * _NEAR)


class MemoryBound:
    """One for each loader whose budget says how much memory there is; asked by any code that submits tasks.

    Args:
        limit: bytes of this process and all below it.
        cache: what is kept of rows in this process.
        queued: bytes of results that nothing has taken yet.
        measure: as ``cedar.core.memory.by_process``.
        clock: seconds.
    """

    def __init__(
        self,
        limit: int,
        cache: Memory,
        queued: Callable[[], int],
        measure: Callable[[], Mapping[int, int]] = memory.by_process,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.limit = limit
        self._cache, self._queued, self._measure, self._clock = cache, queued, measure, clock
        self._next = 0.0
        self._beyond: float | None = None  # since when
        self._told = False
        self._allowed = MemoryAllowance(limit // _PART, limit, True)
        self.peak = 0
        self.parts: dict[str, int] = {}  # when most was held, beyond the limit

    def ahead(self, most: int, size: int) -> int:
        """How many tasks to keep in flight, of at most ``most``, whose results have so many bytes each; 0: unknown."""
        self._look()
        return max(1, min(most, self._allowed.ahead // size if size else 2))

    def _look(self) -> None:
        began = self._clock()
        if began < self._next:
            return
        sizes = self._measure()
        total, cached = sum(sizes.values()), self._cache.nbytes
        self._allowed = allowed(self.limit, total, cached)
        self._cache.limit(self._allowed.cache)
        if not self._allowed.idle:
            buffers.let_go()
            pa.default_memory_pool().release_unused()
        if total > max(self.peak, self.limit):
            self.parts = named(sizes, cached, self._queued())
        self.peak = max(self.peak, total)
        self._tell(total, began)
        self._next = began + _RARELY * (self._clock() - began)

    def _tell(self, total: int, now: float) -> None:
        if total <= self.limit:
            self._beyond = None
        elif self._beyond is None:
            self._beyond = now
        elif now - self._beyond >= _STAYS and not self._told:
            self._told = True
            _log.warning("%s; the run continues with one task at a time for each stage", self.note())

    def note(self) -> str:
        """For a report: how much was held at most, and beyond the limit by whom."""
        allows = f"of Budget(memory={size_text(self.limit)!r})"
        if self.peak <= self.limit:
            return f"memory: at most {size_text(self.peak)} {allows}"
        return f"memory: {size_text(self.peak)} {allows}, exceeded: {describe(self.parts)}"


def named(sizes: Mapping[int, int], cached: int, queued: int) -> dict[str, int]:
    """What is held, by whom: this process, what is known of what it holds, its workers, other processes, libraries.

    Examples:
        >>> named({4: 10, memory.FILES: 2}, 0, 0)["files"]
        2
    """
    workers = {member.pid for pool in processes.pools() if not pool.closed for member in pool.members()}
    parts = {"this process": sizes.get(os.getpid(), 0)}
    known = {"cache()": cached, "results not yet taken": queued, "memory kept for reuse": buffers.idle()}
    parts |= {f"this process: {name}": size for name, size in known.items() if size}
    for pid, size in sorted(sizes.items()):
        if pid not in (os.getpid(), memory.FILES):
            parts[f"{'worker' if pid in workers else 'process'} {pid}"] = size
    return parts | {"files": sizes.get(memory.FILES, 0)}


def describe(parts: Mapping[str, int]) -> str:
    """The parts in a line, the largest first."""
    return ", ".join(f"{name} {size_text(size)}" for name, size in sorted(parts.items(), key=lambda part: -part[1]))
