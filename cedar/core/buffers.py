"""Buffers: memory of large arrays, used again when nothing holds it any more.

An operating system clears each page that it hands out, which takes as long as filling it. A loader makes arrays of the
same few sizes over and over, so what the trainer has let go of serves for the next batch.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_SMALL = 1 << 20  # bytes: below that, the allocator keeps memory itself
_MOST_IDLE = 192 << 20  # bytes kept for later; beyond that, the longest unused goes
_LOOK = 1 << 30  # bytes that are asked for until the next look: what lay idle all the while is not needed


class _Spare:
    """Memory that nothing holds, by size, the longest unused first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._back: deque[mmap.mmap] = deque()  # given back, and not yet sorted in
        self._idle: OrderedDict[int, list[mmap.mmap]] = OrderedDict()
        self._bytes = 0
        self._used = 0  # bytes that something holds
        self._peaks = [0, 0]  # the most of those since the last look, and between it and the one before
        self._asked = 0
        self._least: dict[int, int] = {}  # of each size, how much was idle at the least since the last look

    def take(self, size: int) -> mmap.mmap:
        with self._lock:
            self._sort_in()
            self._asked += size
            if self._asked >= _LOOK:
                self._trim()
            self._used += size
            self._peaks[0] = max(self._peaks[0], self._used)
            if size in self._idle:
                return self._pop(size)
            self._least[size] = 0
            self._shrink()
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        return memory

    def give_back(self, memory: mmap.mmap) -> None:
        """Take back what nothing holds. A collection may call this anywhere, also while this thread has the lock."""
        self._back.append(memory)
        if self._lock.acquire(blocking=False):  # or who has it sorts it in, or the next one
            try:
                self._sort_in()
            finally:
                self._lock.release()

    def let_go(self) -> int:
        """Give what lies idle back to the system; its bytes."""
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
        while self._back:
            memory = self._back.popleft()
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
        self._least[size] = min(self._least.get(size, len(mmaps)), len(mmaps))
        if not mmaps:
            del self._idle[size]
        return memory

    def _shrink(self) -> None:
        """Release the longest unused while there is more than was ever in use at once: of some size too much."""
        most = min(max(self._peaks) - self._used, _MOST_IDLE)
        while self._bytes > most:
            self._pop(next(iter(self._idle)))  # unmapped with its last reference

    def _trim(self) -> None:
        """Release what nothing wanted: a size that is not used any more, or more of one than is in use at once."""
        for size, mmaps in list(self._idle.items()):
            for _ in range(min(self._least.get(size, 0), len(mmaps))):
                self._pop(size)
        self._asked, self._least = 0, {size: len(mmaps) for size, mmaps in self._idle.items()}
        self._peaks = [self._used, self._peaks[0]]


_spare = _Spare()


def let_go() -> int:
    """Give the memory that lies idle back to the system; its bytes.

    Examples:
        >>> array = empty((1 << 20,), "uint8")
        >>> del array
        >>> _ = let_go()
        >>> idle()
        0
    """
    return _spare.let_go()


def idle() -> int:
    """Bytes that nothing holds, kept for the arrays to come."""
    return _spare.idle


def _rounded(size: int) -> int:
    """Up to a quarter more, so that arrays of about a size have each other's memory; what is not touched is free."""
    step = 1 << max(size.bit_length() - 3, 16)
    return -(-size // step) * step


def empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An array like ``numpy.empty``; its memory is used again when the array and all views of it are gone.

    Examples:
        >>> array = empty((2, 3), "uint8")
        >>> array.shape, array.flags.writeable
        ((2, 3), True)
    """
    kind = np.dtype(dtype)
    count = math.prod(shape)
    size = count * kind.itemsize
    if size < _SMALL or kind.hasobject:
        return np.empty(shape, kind)
    memory = _spare.take(_rounded(size))
    owner: Any = (ctypes.c_ubyte * len(memory)).from_buffer(memory)
    weakref.finalize(owner, _spare.give_back, memory).atexit = False
    return np.frombuffer(owner, kind, count).reshape(shape)


class Room:
    """Memory for the rows of one batch, into which several tasks write, each its own.

    Args:
        rows: of the batch.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        self._lock = threading.Lock()

    def of(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """The column of all rows; ``shape`` is that of one."""
        with self._lock:
            if name not in self._arrays:
                self._arrays[name] = empty((self._rows, *shape), dtype)
            return self._arrays[name]


@dataclass(frozen=True)
class BatchPlace:
    """The place of a task's rows in their batch.

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
        """Where column ``name`` of the task's rows goes; None for another number of rows."""
        if rows != self.rows:
            return None
        return self.room.of(name, shape, dtype)[self.first : self.first + rows]


def joined(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any] | None:
    """One view of arrays that are in one piece of memory, one after the other; None if they do not.

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
