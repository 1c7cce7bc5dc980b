"""Board: the page where the tasks in flight of this process say what they are at.

One page, and one file descriptor, whatever the number of workers and runs; no name of it is left in a file system, so
nothing is left when all are killed.
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

_SLOTS = 1024
_log = logging.getLogger("cedar")


class AttemptBoard:
    """Slots, taken for the time of a task's attempt.

    Examples:
        >>> board = AttemptBoard()
        >>> place = board.take()
        >>> board.read(place) is None
        True
        >>> board.give(place)
    """

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._token = secrets.token_bytes(TOKEN)
        self._lock = threading.Lock()
        self._free = deque(range(1, _SLOTS))
        size = _SLOTS * SLOT
        self._fd, self._path = -1, ""
        try:
            self._page = self._shared(size)
        except OSError as error:  # a limit of the size of files, a full disk: rows go without marks
            self._free.clear()
            self._page = mmap.mmap(-1, size)
            _log.warning("no page can be shared with workers (%s): a row that ends one is not named", error)
        self._page[:TOKEN] = self._token

    def _shared(self, size: int) -> mmap.mmap:
        if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
            self._fd = os.memfd_create("cedar-marks")
            os.ftruncate(self._fd, size)
            self._path = f"/proc/{self._owner}/fd/{self._fd}"
        else:
            self._file = tempfile.NamedTemporaryFile(prefix="cedar-marks-")  # noqa: SIM115 - as long as this lives
            self._file.truncate(size)
            self._fd, self._path = self._file.fileno(), self._file.name
        return mmap.mmap(self._fd, size)

    def take(self) -> SlotAddress | None:
        """An empty slot; None if all are taken, and a task then goes without."""
        with self._lock:
            if not self._free:
                return None
            number = self._free.popleft()
        self._page[number * SLOT : (number + 1) * SLOT] = bytes(SLOT)
        return SlotAddress(self._path, self._token, number, self._owner)

    def give(self, place: SlotAddress) -> None:
        """Nothing writes to the slot any more."""
        with self._lock:
            self._free.append(place.number)  # the one that rested longest is taken next

    def read(self, place: SlotAddress) -> SlotReading | None:
        """What is written there."""
        return written(self._page, place.number)


def the_board() -> AttemptBoard:
    """This process's own; a forked child makes another."""
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
