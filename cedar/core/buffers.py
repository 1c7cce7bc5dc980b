"""Buffers: the memory of large arrays, which is reused when no array references it any more.

The operating system clears each page that it provides, which takes as long as filling it with data. A loader allocates
arrays of few sizes repeatedly, so it reuses the memory of batches that the trainer has released.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_SMALL = 1 << 20  # bytes; the allocator itself reuses smaller arrays
MIN_SHARED_BYTES = 1 << 16  # smaller arrays are sent to other processes through a socket
_MAX_IDLE_BYTES = 192 << 20  # maximum idle bytes; above this, the size unused for longest is released
_TRIM_INTERVAL_BYTES = 1 << 30  # bytes requested between two trims (see ``_trim``)


class _IdleMemory:
    """Idle memory by size, the size unused for longest first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._returned: deque[mmap.mmap] = deque()  # returned, not yet added to _idle
        self._idle: OrderedDict[int, list[mmap.mmap]] = OrderedDict()
        self._bytes = 0
        self._used = 0  # bytes in use by arrays
        self._peaks = [0, 0]  # the highest _used since the last trim, and between the last two trims
        self._requested = 0
        self._min_idle: dict[int, int] = {}  # by size: the smallest number of idle buffers since the last trim

    def take(self, size: int) -> mmap.mmap:
        with self._lock:
            self._sort_in()
            self._requested += size
            if self._requested >= _TRIM_INTERVAL_BYTES:
                self._trim()
            self._used += size
            self._peaks[0] = max(self._peaks[0], self._used)
            if size in self._idle:
                return self._pop(size)
            self._min_idle[size] = 0
            self._shrink()
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        return memory

    def give_back(self, memory: mmap.mmap) -> None:
        """Take back unreferenced memory. The garbage collector may call this while this thread has the lock."""
        self._returned.append(memory)
        if self._lock.acquire(blocking=False):  # otherwise the lock's holder or the next caller does this
            try:
                self._sort_in()
            finally:
                self._lock.release()

    def release_idle(self) -> int:
        """Release all idle memory to the operating system, and return its bytes."""
        with self._lock:
            self._sort_in()
            idle = self._bytes
            while self._bytes:
                self._pop(next(iter(self._idle)))
        return idle

    @property
    def idle(self) -> int:
        return self._bytes

    def _sort_in(self) -> None:
        while self._returned:
            memory = self._returned.popleft()
            size = len(memory)
            self._used -= size
            self._idle.setdefault(size, []).append(memory)
            self._idle.move_to_end(size)
            self._bytes += size
        self._shrink()

    def _pop(self, size: int) -> mmap.mmap:
        mmaps = self._idle[size]
        memory = mmaps.pop()
        self._bytes -= size
        self._min_idle[size] = min(self._min_idle.get(size, len(mmaps)), len(mmaps))
        if not mmaps:
            del self._idle[size]
        return memory

    def _shrink(self) -> None:
        """Release the buffers unused for longest until idle and used bytes together are at most the recent peak."""
        limit = min(max(self._peaks) - self._used, _MAX_IDLE_BYTES)
        while self._bytes > limit:
            self._pop(next(iter(self._idle)))  # no other reference exists, so the memory is unmapped

    def _trim(self) -> None:
        """Release buffers that stayed idle since the last trim: more of their size exist than are used at a time."""
        for size, mmaps in list(self._idle.items()):
            for _ in range(min(self._min_idle.get(size, 0), len(mmaps))):
                self._pop(size)
        self._requested, self._min_idle = 0, {size: len(mmaps) for size, mmaps in self._idle.items()}
        self._peaks = [self._used, self._peaks[0]]


_idle_memory = _IdleMemory()
_reserve: Callable[[int], memoryview | None] | None = None


def share(reserve: Callable[[int], memoryview | None] | None) -> None:
    """Create large arrays in memory that ``reserve`` returns for a size in bytes, unless it returns None.

    A worker process shares this memory with its parent, so that sending the arrays copies nothing.
    """
    global _reserve  # noqa: PLW0603 - one allocator per process
    _reserve = reserve


def release_idle() -> int:
    """Release all idle memory to the operating system, and return its bytes.

    Examples:
        >>> array = empty((1 << 20,), "uint8")
        >>> del array
        >>> _ = release_idle()
        >>> idle()
        0
    """
    return _idle_memory.release_idle()


def idle() -> int:
    """Return the bytes of idle memory that is available for later arrays."""
    return _idle_memory.idle


def _rounded(size: int) -> int:
    """Round a size up by at most a quarter, so that similar sizes share buffers. Unused pages occupy no memory."""
    step = 1 << max(size.bit_length() - 3, 16)
    return -(-size // step) * step


def empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an array like ``numpy.empty``; its memory is reused once the array and all of its views are gone.

    Examples:
        >>> array = empty((2, 3), "uint8")
        >>> array.shape, array.flags.writeable
        ((2, 3), True)
    """
    kind = np.dtype(dtype)
    count = math.prod(shape)
    size = count * kind.itemsize
    if _reserve is not None and size >= MIN_SHARED_BYTES and not kind.hasobject:
        shared = _reserve(size)
        if shared is not None:
            return np.frombuffer(shared, kind, count).reshape(shape)
    if size < _SMALL or kind.hasobject:
        return np.empty(shape, kind)
    memory = _idle_memory.take(_rounded(size))
    owner: Any = (ctypes.c_ubyte * len(memory)).from_buffer(memory)
    weakref.finalize(owner, _idle_memory.give_back, memory).atexit = False
    return np.frombuffer(owner, kind, count).reshape(shape)


class Room:
    """Memory for the rows of one batch. Several tasks write to it, each to its own rows.

    Args:
        rows: the number of rows of the batch.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        self._lock = threading.Lock()

    def of(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return the column for all rows of the batch; ``shape`` is the shape of one row."""
        with self._lock:
            if name not in self._arrays:
                self._arrays[name] = empty((self._rows, *shape), dtype)
            return self._arrays[name]


@dataclass(frozen=True)
class BatchPlace:
    """The part of a batch's memory that a task writes its rows to.

    Examples:
        >>> place = BatchPlace(Room(8), 2, 3)
        >>> place.array("x", 3, (5,), "float32").shape
        (3, 5)
        >>> place.array("x", 2, (5,), "float32")  # not all of them
    """

    room: Room
    first: int
    rows: int

    def array(self, name: str, rows: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any] | None:
        """Return the memory for column ``name`` of the task's rows; None if ``rows`` is not the expected number."""
        if rows != self.rows:
            return None
        return self.room.of(name, shape, dtype)[self.first : self.first + rows]


def joined(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any] | None:
    """Return a single view of arrays that are adjacent in memory; None if they are not adjacent.

    Examples:
        >>> whole = np.arange(6).reshape(3, 2)
        >>> joined([whole[:1], whole[1:]]).tolist(), joined([whole[1:], whole[:1]])
        ([[0, 1], [2, 3], [4, 5]], None)
    """
    first = arrays[0]
    if first.base is None or not all(each.base is first.base and each.flags.c_contiguous for each in arrays):
        return None
    ends = [each.ctypes.data + each.nbytes for each in arrays]
    if any(each.ctypes.data != end for each, end in zip(arrays[1:], ends, strict=False)):
        return None
    if any(each.shape[1:] != first.shape[1:] or each.dtype != first.dtype for each in arrays):
        return None
    shape = (sum(map(len, arrays)), *first.shape[1:])
    return np.lib.stride_tricks.as_strided(first, shape, first.strides, writeable=first.flags.writeable)
