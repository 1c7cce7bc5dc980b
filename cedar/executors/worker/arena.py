"""Arena: memory shared by two processes. One process writes buffers to it, and the other reads them without a copy.

The reader creates the arena, maps it, and sends its file descriptor once. The writer allocates space for each buffer,
and the reader's next message lists the buffers that it released. The writer may also create arrays in the arena, so
that sending them copies nothing. The file has no name, so it ends with the processes.
"""

from __future__ import annotations

import bisect
import logging
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np

CAPACITY = 128 << 20  # size in bytes; physical memory is allocated on first use
_ALIGN = 64
_MAX_UNUSED_BYTES = 16 << 20  # bytes that may be unused before the writer returns them to the system
_PUTS_BETWEEN_TRIMS = 64  # buffers written between two checks for unused memory
_log = logging.getLogger(__name__)


class _OnceFilter(logging.Filter):
    """Passes only the first record, so that several workers do not repeat the same warning."""

    reported = False

    def filter(self, record: logging.LogRecord) -> bool:
        reported, self.reported = self.reported, True
        return not reported


_log.addFilter(_OnceFilter())


def warn(error: Exception) -> None:
    """Warn once that shared memory is missing or full. Do not call this in ``send``: in a worker, logging sends too."""
    _log.warning(
        "shared memory is missing or full (%s): rows travel through pipes, which costs another copy; "
        "give the container more, such as docker run --shm-size=1g", error,
    )  # fmt: skip


class RangeAllocator:
    """Allocates byte ranges of an arena by first fit, so that high addresses are used last.

    Args:
        capacity: size of the arena in bytes; a multiple of 64.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._starts = [0] if capacity else []  # starts of the free ranges, ascending; adjacent ranges are merged
        self._stops = [capacity] if capacity else []
        self._stop_by_start: dict[int, int] = {}  # stop of each reserved range, by its start

    def take(self, size: int) -> int | None:
        """Reserve ``size`` bytes (above 0) and return their start, a multiple of 64; None if no free range fits."""
        size += -size % _ALIGN
        for i, (start, stop) in enumerate(zip(self._starts, self._stops, strict=True)):
            if stop - start >= size:
                self._stop_by_start[start] = self._starts[i] = start + size
                if stop - start == size:
                    del self._starts[i], self._stops[i]
                return start
        return None

    def free(self, start: int) -> None:
        """Free the range that begins at ``start``, a value that ``take`` returned."""
        stop = self._stop_by_start.pop(start)
        i = bisect.bisect(self._starts, start)
        if i < len(self._starts) and self._starts[i] == stop:
            stop = self._stops[i]
            del self._starts[i], self._stops[i]
        if i and self._stops[i - 1] == start:
            self._stops[i - 1] = stop
        else:
            self._starts.insert(i, start)
            self._stops.insert(i, stop)

    def shrink(self, capacity: int) -> None:
        """Lower the capacity to ``capacity``, which must be at least ``end``."""
        if self._stops and self._stops[-1] == self.capacity:
            self._stops[-1] = capacity
            if self._starts[-1] >= capacity:
                del self._starts[-1], self._stops[-1]
        self.capacity = capacity

    @property
    def end(self) -> int:
        """The offset after the last reserved range."""
        return self._starts[-1] if self._stops and self._stops[-1] == self.capacity else self.capacity


class Outbox:
    """The writer's side of an arena.

    Args:
        number: the arena's number; each reader numbers its arenas from 1.
        file: the arena's file descriptor, which ``close`` closes.
        capacity: size in bytes.
    """

    def __init__(self, number: int, file: int, capacity: int) -> None:
        self.number = number
        self._file = file
        self._ranges = RangeAllocator(capacity)
        self._written_bytes = 0  # memory is allocated for the bytes below this offset
        self._recent_peak = 0  # highest offset written since the last check for unused memory
        self._puts = 0
        self._memory: mmap.mmap | None = None
        self._address = 0  # of the mapped memory
        self._reserved: dict[int, bool] = {}  # start of each range with a live array: whether the reader uses it, too
        self._dropped: deque[int] = deque()  # starts of ranges whose arrays were garbage-collected
        self._forked: set[int] = set()  # starts of ranges that a forked child may still read
        with fork_lock:
            _outboxes.add(self)

    def reserve(self, size: int) -> memoryview | None:
        """Return memory for an array of ``size`` bytes that ``put`` need not copy; None if there is none."""
        self._free_dropped()
        start = self._ranges.take(size)
        if start is None:
            return None
        try:
            if start + size > self._written_bytes:  # without this, writing to the memory of a full system would crash
                os.posix_fallocate(self._file, start, size)
            if self._memory is None:
                self._memory = mmap.mmap(self._file, self._ranges.capacity)
                self._address = _address(memoryview(self._memory))
        except (OSError, ValueError):
            self._ranges.free(start)
            return None
        self._written_bytes = max(self._written_bytes, start + size)
        self._recent_peak = max(self._recent_peak, start + size)
        whole = np.frombuffer(self._memory, dtype=np.uint8, count=size, offset=start)
        self._reserved[start] = False
        weakref.finalize(whole, self._dropped.append, start).atexit = False
        return whole.data

    def put(self, buffer: memoryview) -> int | None:
        """Copy the buffer into the arena and return its offset, which the reader needs; None if no free range fits.

        An array that ``reserve`` provided memory for is not copied, unless the reader still uses it.

        Raises:
            OSError: the file system is full. From then on, the arena uses only memory that it already has.
        """
        self._free_dropped()
        if self._reserved and self._reserved.get(there := _address(buffer) - self._address) is False:
            self._reserved[there] = True
            self._trim(there + buffer.nbytes)
            return there
        start = self._ranges.take(buffer.nbytes)
        if start is None:
            return None
        try:
            done = 0
            while done < buffer.nbytes:  # one call writes at most 2 GiB
                done += os.pwrite(self._file, buffer[done:], start + done)
        except OSError:
            self._ranges.free(start)
            self._ranges.shrink(self._written_bytes + -self._written_bytes % _ALIGN)
            os.ftruncate(self._file, self._written_bytes)
            raise
        self._written_bytes = max(self._written_bytes, start + buffer.nbytes)
        self._trim(start + buffer.nbytes)
        return start

    def free(self, starts: Iterable[int]) -> None:
        """Free the buffers at these offsets, which the reader has released."""
        for start in starts:
            if start in self._reserved:
                self._reserved[start] = False
            elif start not in self._forked:
                self._ranges.free(start)

    def _free_dropped(self) -> None:
        """Free the ranges whose arrays were garbage-collected, unless the reader uses them."""
        while self._dropped:
            start = self._dropped.popleft()
            if not self._reserved.pop(start) and start not in self._forked:
                self._ranges.free(start)

    def keep_for_child(self) -> None:
        """Before a fork, keep the ranges of live arrays until this process ends."""
        self._forked |= set(self._reserved)

    def _trim(self, reached: int) -> None:
        """Every ``_PUTS_BETWEEN_TRIMS`` buffers, return memory above the recent peak to the system."""
        self._recent_peak = max(self._recent_peak, reached)
        self._puts += 1
        if self._puts % _PUTS_BETWEEN_TRIMS:
            return
        peak = max(self._recent_peak, self._ranges.end)
        if self._written_bytes - peak > _MAX_UNUSED_BYTES:
            os.ftruncate(self._file, peak)
            os.ftruncate(self._file, self._ranges.capacity)
            self._written_bytes = peak
        self._recent_peak = 0

    def close(self) -> None:
        """Close the file descriptor; the reader can still read the memory."""
        os.close(self._file)


class Inbox:
    """The reader's side of an arena. Its memory is freed once the inbox and all views of it are garbage-collected.

    Args:
        number: the arena's number; each reader numbers its arenas from 1.

    Raises:
        OSError: shared memory is not available.
    """

    def __init__(self, number: int, capacity: int = CAPACITY) -> None:
        self.file = -1
        self.number = number
        self.capacity = capacity
        self.released: deque[int] = deque()  # offsets of released buffers that must still be reported to the writer
        self.retired = False
        self.file = _open_unnamed_file()
        try:
            os.ftruncate(self.file, capacity)
            self._memory = mmap.mmap(self.file, capacity)
        except BaseException:
            self.close()
            raise
        self._viewed_starts: set[int] = set()
        with fork_lock:
            _inboxes.add(self)

    def view(self, start: int, size: int) -> memoryview:
        """Return the buffer without copying it. It is released once nothing references the returned memory any more."""
        with fork_lock:
            self._viewed_starts.add(start)
        whole = np.frombuffer(self._memory, dtype=np.uint8, count=size, offset=start)
        weakref.finalize(whole, self._release, start).atexit = False
        return whole.data

    def _release(self, start: int) -> None:
        """Record a released buffer. The garbage collector may call this in any thread, so it must not acquire locks."""
        self._viewed_starts.discard(start)
        if not self.retired:
            self.released.append(start)

    @property
    def read(self) -> bool:
        """Whether any buffer of this arena is still referenced."""
        return bool(self._viewed_starts)

    def close(self) -> None:
        """Close the file descriptor; the memory stays mapped."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1

    def __del__(self) -> None:
        self.close()


def _address(buffer: memoryview) -> int:
    found: int = np.frombuffer(buffer, dtype=np.uint8).__array_interface__["data"][0]
    return found


def _open_unnamed_file() -> int:
    """Return the descriptor of a new unnamed file in memory."""
    try:
        return os.memfd_create("cedar", os.MFD_CLOEXEC)
    except (AttributeError, OSError):  # this Python or this system has no memfd_create
        return os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)  # noqa: S108 - it has no name


# ---- forks -----------------------------------------------------------------------------------------------------------
# A forked child shares the arena's memory, so the writer must not overwrite buffers that the child may still read.
# An arena in use at a fork is retired: it no longer reports released buffers, and the reader creates another arena.
# In the same way, the writer never reuses the memory of arrays that were alive at a fork.

_inboxes: weakref.WeakSet[Inbox] = weakref.WeakSet()
_outboxes: weakref.WeakSet[Outbox] = weakref.WeakSet()
fork_lock = threading.Lock()  # while this lock is held, the process cannot fork


def _before_fork() -> None:
    fork_lock.acquire()
    for inbox in _inboxes:
        inbox.retired = inbox.retired or inbox.read
    for outbox in _outboxes:
        outbox.keep_for_child()


def _after_fork(*_: Any) -> None:
    fork_lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
