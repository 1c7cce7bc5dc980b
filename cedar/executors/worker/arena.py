"""Arena: memory that two processes share. One puts buffers into it, the other reads them where they lie.

The reader makes it, maps it and hands its descriptor over, once. The writer decides which bytes a buffer gets; the
reader tells it (with its next message) which it no longer needs. The file has no name: it is gone with the processes.
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

CAPACITY = 128 << 20  # bytes; of addresses: memory is taken as it is used
_ALIGN = 64
_SPARE = 16 << 20  # bytes that may lie unused before they are given back
_PUTS = 64  # between two looks at how much lies unused
_log = logging.getLogger(__name__)


class _Once(logging.Filter):
    """Lets one line through, also where several workers have the same to say."""

    reported = False

    def filter(self, record: logging.LogRecord) -> bool:
        reported, self.reported = self.reported, True
        return not reported


_log.addFilter(_Once())


def warn(error: Exception) -> None:
    """Say, once, that there is too little memory to share. In a worker this sends a message: to be called outside."""
    _log.warning(
        "shared memory is missing or full (%s): rows travel through pipes, which costs another copy; "
        "give the container more, such as docker run --shm-size=1g", error,
    )  # fmt: skip


class Slots:
    """Which bytes of so many are taken: first fit, so that the high ones are touched last.

    Args:
        capacity: bytes; a multiple of 64.

    Examples:
        >>> slots = Slots(256)
        >>> slots.take(100), slots.take(64), slots.take(100)
        (0, 128, None)
        >>> slots.free(0)
        >>> slots.take(1), slots.end
        (0, 192)
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._starts = [0] if capacity else []  # of the free runs, ascending; no two of them touch
        self._stops = [capacity] if capacity else []
        self._taken: dict[int, int] = {}  # start to stop

    def take(self, size: int) -> int | None:
        """The start of ``size`` bytes (above 0) of their own, a multiple of 64; None if they do not fit."""
        size += -size % _ALIGN
        for i, (start, stop) in enumerate(zip(self._starts, self._stops, strict=True)):
            if stop - start >= size:
                self._taken[start] = self._starts[i] = start + size
                if stop - start == size:
                    del self._starts[i], self._stops[i]
                return start
        return None

    def free(self, start: int) -> None:
        """Give back what ``take`` returned."""
        stop = self._taken.pop(start)
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
        """Take no byte from ``capacity`` on any more; it is not below ``end``."""
        if self._stops and self._stops[-1] == self.capacity:
            self._stops[-1] = capacity
            if self._starts[-1] >= capacity:
                del self._starts[-1], self._stops[-1]
        self.capacity = capacity

    @property
    def end(self) -> int:
        """Where the last slot that is taken stops."""
        return self._starts[-1] if self._stops and self._stops[-1] == self.capacity else self.capacity


class Outbox:
    """The writer's end.

    Args:
        number: of the arena among those of its reader.
        file: its descriptor, which is closed here.
        capacity: bytes.
    """

    def __init__(self, number: int, file: int, capacity: int) -> None:
        self.number = number
        self._file = file
        self._slots = Slots(capacity)
        self._written = 0  # below, the file has its memory
        self._peak = 0  # of what was taken since the last look
        self._puts = 0

    def put(self, buffer: memoryview) -> int | None:
        """Where the buffer's bytes lie now; None if there is no room. The reader may read once it receives the
        address.

        Raises:
            OSError: the file system is full. From now on the arena stays within what it has.
        """
        start = self._slots.take(buffer.nbytes)
        if start is None:
            return None
        try:
            done = 0
            while done < buffer.nbytes:  # a call writes 2 GiB at most
                done += os.pwrite(self._file, buffer[done:], start + done)
        except OSError:
            self._slots.free(start)
            self._slots.shrink(self._written + -self._written % _ALIGN)
            os.ftruncate(self._file, self._written)
            raise
        self._written = max(self._written, start + buffer.nbytes)
        self._trim(start + buffer.nbytes)
        return start

    def free(self, starts: Iterable[int]) -> None:
        """The reader no longer needs what is there."""
        for start in starts:
            self._slots.free(start)

    def _trim(self, reached: int) -> None:
        """Now and then, give back the memory beyond what was needed of late."""
        self._peak = max(self._peak, reached)
        self._puts += 1
        if self._puts % _PUTS:
            return
        peak = max(self._peak, self._slots.end)
        if self._written - peak > _SPARE:
            os.ftruncate(self._file, peak)
            os.ftruncate(self._file, self._slots.capacity)
            self._written = peak
        self._peak = 0

    def close(self) -> None:
        """The reader keeps what it has."""
        os.close(self._file)


class Inbox:
    """The reader's end. Its memory lives as long as it, and as long as anything that was read from it.

    Args:
        number: of the arena among those of this reader.

    Raises:
        OSError: there is no memory to share.
    """

    def __init__(self, number: int, capacity: int = CAPACITY) -> None:
        self.file = -1
        self.number = number
        self.capacity = capacity
        self.released: deque[int] = deque()  # starts of slots that nothing reads any more, to be reported
        self.retired = False
        self.file = _nameless()
        try:
            os.ftruncate(self.file, capacity)
            self._memory = mmap.mmap(self.file, capacity)
        except BaseException:
            self.close()
            raise
        self._read: set[int] = set()
        with forking:
            _inboxes.add(self)

    def view(self, start: int, size: int) -> memoryview:
        """What is there, without a copy. The slot is released with the last object that refers to the memory."""
        with forking:
            self._read.add(start)
        whole = np.frombuffer(self._memory, dtype=np.uint8, count=size, offset=start)
        weakref.finalize(whole, self._release, start).atexit = False
        return whole.data

    def _release(self, start: int) -> None:
        """In whichever thread let go, at any moment: no lock is taken."""
        self._read.discard(start)
        if not self.retired:
            self.released.append(start)

    @property
    def read(self) -> bool:
        """Something still refers to what lies here."""
        return bool(self._read)

    def close(self) -> None:
        """The descriptor has been delivered; the memory stays."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1

    def __del__(self) -> None:
        self.close()


def _nameless() -> int:
    """A file in memory that no folder lists."""
    try:
        return os.memfd_create("cedar", os.MFD_CLOEXEC)
    except (AttributeError, OSError):  # this Python, or this system, has none
        return os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)  # noqa: S108 - it gets no name


# ---- forks -----------------------------------------------------------------------------------------------------------
# A forked child sees the same memory. What it refers to must not be overwritten when its parent lets go: from an arena
# that is in use at a fork, nothing is released any more, and the reader makes another one.

_inboxes: weakref.WeakSet[Inbox] = weakref.WeakSet()
forking = threading.Lock()  # any code that holds it keeps this process from being forked


def _before_fork() -> None:
    forking.acquire()
    for inbox in _inboxes:
        inbox.retired = inbox.retired or inbox.read


def _after_fork(*_: Any) -> None:
    forking.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
