"""Board: shared memory in which workers record the operator and row that each running task has reached.

A process has one board and one file descriptor for all its workers and runs. On Linux, the file has no name, so it
disappears even if all processes are killed. On other systems it is a temporary file.
"""

from __future__ import annotations

import logging
import mmap
import os
import secrets
import tempfile
import threading
from collections import deque

from cedar.operators.marks import SLOT, TOKEN, SlotAddress, SlotReading, written

_SLOT_COUNT = 1024
_log = logging.getLogger("cedar")


class AttemptBoard:
    """Shared memory with slots: each attempt at a task uses one, in which its worker marks the operator and row."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._token = secrets.token_bytes(TOKEN)
        self._lock = threading.Lock()
        self._free = deque(range(1, _SLOT_COUNT))
        size = _SLOT_COUNT * SLOT
        self._fd, self._path = -1, ""
        try:
            self._page = self._shared(size)
        except OSError as error:  # there is a file size limit or the disk is full, so run without marks
            self._free.clear()
            self._page = mmap.mmap(-1, size)
            _log.warning("cannot share memory with workers (%s): rows that crash workers will not be named", error)
        self._page[:TOKEN] = self._token

    def _shared(self, size: int) -> mmap.mmap:
        if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
            self._fd = os.memfd_create("cedar-marks")
            os.ftruncate(self._fd, size)
            self._path = f"/proc/{self._owner}/fd/{self._fd}"
        else:
            self._file = tempfile.NamedTemporaryFile(prefix="cedar-marks-")  # noqa: SIM115 - kept open by self
            self._file.truncate(size)
            self._fd, self._path = self._file.fileno(), self._file.name
        return mmap.mmap(self._fd, size)

    def take(self) -> SlotAddress | None:
        """Return an empty slot; None if all slots are in use. A task without a slot records no marks."""
        with self._lock:
            if not self._free:
                return None
            number = self._free.popleft()
        self._page[number * SLOT : (number + 1) * SLOT] = bytes(SLOT)
        return SlotAddress(self._path, self._token, number, self._owner)

    def give(self, place: SlotAddress) -> None:
        """Make a slot available again, to which no process writes any more."""
        with self._lock:
            self._free.append(place.number)  # ``take`` reuses the slot that was unused for the longest time

    def read(self, place: SlotAddress) -> SlotReading | None:
        """Return the mark in a slot; None if it is empty."""
        return written(self._page, place.number)


def process_board() -> AttemptBoard:
    """Return this process's board. A forked child creates its own."""
    with _lock:
        if not _boards:
            _boards.append(AttemptBoard())
        return _boards[0]


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - another thread may have held it
    _lock = threading.Lock()
    _boards.clear()


_boards: list[AttemptBoard] = []
_lock = threading.Lock()
os.register_at_fork(after_in_child=_after_fork)
