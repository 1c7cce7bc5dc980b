"""Locks between processes, so that one process computes a result while others wait for it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

_WAIT_SECONDS = 600.0  # after this many seconds, a process stops waiting and computes the result itself
_POLL_SECONDS = 0.02


@contextlib.contextmanager
def alone(path: str) -> Iterator[None]:
    """Let one thread of one process at a time run the ``with`` block for a path, whose folder must exist.

    The lock is on a file next to the path; the file is removed afterward. The system releases the lock of a killed
    process. If the file cannot be written or the file system has no locks, the block runs without a lock.
    """
    folder, base = os.path.split(path)
    name = os.path.join(folder, f".{base}.lock")
    handle = _wait_for_lock(name)
    try:
        yield
    finally:
        if handle is not None:
            with contextlib.suppress(OSError):
                os.unlink(name)
        release(handle)


def _wait_for_lock(name: str) -> int | None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < deadline:
        try:
            handle = acquire(name)
        except BlockingIOError:
            time.sleep(_POLL_SECONDS)
            continue
        if handle is None or _is_same_file(handle, name):
            return handle
        release(handle)  # the process that had the lock has removed this file
    return None


def acquire(name: str) -> int | None:
    """Take the lock on a file, which is created if needed; None if locking is impossible.

    Raises:
        BlockingIOError: another process or thread holds the lock.
    """
    try:
        handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise
    except OSError:  # a file system without locks
        os.close(handle)
        return None
    return handle


def release(handle: int | None) -> None:
    """Release a lock, even if a forked process has inherited the handle; None does nothing."""
    if handle is None:
        return
    with contextlib.suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)


def _is_same_file(handle: int, name: str) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(name))
    except OSError:
        return False
