"""Local files and folders: atomic writes, locks between processes, private folders, and safe removal.

cedar only removes files that it wrote, in folders that it made and marked. When it makes a folder, it adds a small
marker file. Before it removes a file from a folder, it reads the marker and checks that the file's name matches the
format's pattern. Other folders, such as one named by mistake, stay unchanged.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator

MARK = ".cedar-owned"
_MAX_MARK_BYTES = 4096  # maximum bytes to read from a marker file
_WAIT_SECONDS = 600.0  # after this many seconds, a process stops waiting and computes the result itself
_CLAIM_SECONDS = 60.0  # after this many seconds, a claim that other processes do not complete is an error
_POLL_SECONDS = 0.02


class ForeignFile(OSError):
    """Raised for a folder or file that cedar did not make."""


# ---- atomic writes ---------------------------------------------------------------------------------------------------


def temporary_name(path: str, owner: str = "") -> str:
    """Return a hidden, unique name next to a file, for use until the file is complete.

    Examples:
        >>> len(temporary_name("a", "job1")), temporary_name("out/a.json", "job1")[:20]
        (23, 'out/.a.json.tmp-job1')
    """
    folder, base = os.path.split(path)
    return os.path.join(folder, f".{base}.tmp-{owner}{uuid.uuid4().hex[:12]}")


def write_whole(path: str, data: bytes) -> None:
    """Write or replace a file atomically."""
    with _written(path, data) as temporary:
        os.replace(temporary, path)


def write_first(path: str, data: bytes) -> None:
    """Write a file unless its name exists. If several processes try at the same time, one of them succeeds.

    Many mounts have no hard links. Instead, each process makes a folder with the name of its temporary file, and
    renames the folder to one shared name, the claim. Only one rename can succeed, since the claim is not empty
    afterward. Any process that finds a claim renames that temporary file, so a killed process does not block others.

    Raises:
        OSError: the file cannot be written, or there is a claim that cannot be removed.
    """
    folder, base = os.path.split(path)
    claim = os.path.join(folder, f".{base}.claim")
    deadline = time.monotonic() + _CLAIM_SECONDS
    with _written(path, data) as temporary:
        while os.path.exists(temporary) and not os.path.exists(path):
            mine = tempfile.mkdtemp(prefix=f".{base}.tmp-", dir=folder)
            with open(os.path.join(mine, os.path.basename(temporary)), "xb"):
                pass
            try:
                os.rename(mine, claim)
            except OSError as error:
                shutil.rmtree(mine, ignore_errors=True)
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY) and not os.path.isdir(claim):
                    raise
            _settle(claim)
            if os.path.lexists(claim):
                if time.monotonic() > deadline:
                    raise OSError(errno.ENOTEMPTY, "a folder left by another process cannot be removed", claim)
                time.sleep(_POLL_SECONDS)


def settle_claims(folder: str) -> None:
    """Complete the ``write_first`` calls of killed processes in a folder."""
    for name in os.listdir(folder):
        if name.startswith(".") and name.endswith(".claim"):
            _settle(os.path.join(folder, name))


def _settle(claim: str) -> None:
    folder, base = os.path.dirname(claim), os.path.basename(claim)[1 : -len(".claim")]
    with contextlib.suppress(OSError):  # another process has completed the claim, or is completing it
        for name in os.listdir(claim):
            if name.startswith(f".{base}.tmp-") and not os.path.exists(os.path.join(folder, base)):
                with contextlib.suppress(FileNotFoundError):
                    os.rename(os.path.join(folder, name), os.path.join(folder, base))
            os.unlink(os.path.join(claim, name))
        os.rmdir(claim)


@contextlib.contextmanager
def _written(path: str, data: bytes) -> Iterator[str]:
    """Write a temporary file to disk and yield its name. Remove the file afterward, unless it was renamed."""
    temporary = temporary_name(path)
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


# ---- locks -----------------------------------------------------------------------------------------------------------


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
        with contextlib.suppress(OSError):  # the process that had the lock may have removed this file
            if handle is None or os.path.samestat(os.fstat(handle), os.stat(name)):
                return handle
        release(handle)
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


# ---- private folders -------------------------------------------------------------------------------------------------


def private_folder(name: str = "") -> str | None:
    """Return ``$XDG_CACHE_HOME/cedar`` or ``~/.cache/cedar``, or a folder in it; None if others can write to it.

    A missing folder is made private to this user. If that fails, a folder in the temporary directory is used.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    if not os.path.isabs(base):
        return None
    folder = os.path.join(base, "cedar")
    with contextlib.suppress(OSError):
        os.makedirs(base, exist_ok=True)
    if not ours(folder):
        if os.path.lexists(folder):
            return None
        folder = os.path.join(tempfile.gettempdir(), f"cedar-{os.geteuid()}")
        if not ours(folder):
            return None
    inside = os.path.join(folder, name) if name else folder
    return inside if inside == folder or ours(inside) else None


def ours(folder: str) -> bool:
    """Make a folder if it is missing. Return whether it belongs to this user and no other user may write to it."""
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        return not why_not_ours(os.lstat(folder))
    except OSError:
        return False


def why_not_ours(status: os.stat_result) -> str:
    """Return why a path is not a folder that only this user can write to; "" if it is such a folder."""
    if not stat.S_ISDIR(status.st_mode):
        return "is not a directory"
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        return f"belongs to another user (uid {status.st_uid}, you are {os.geteuid()})"
    if hasattr(os, "geteuid") and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"can be written by others (mode {stat.S_IMODE(status.st_mode):o})"
    return ""


# ---- marked folders --------------------------------------------------------------------------------------------------


def mark_of(kind: str) -> bytes:
    """Return the content of the marker file for a kind of folder."""
    return f"cedar made this folder, and removes what it wrote here: {kind}\n".encode()


def make_owned(path: str, kind: str, mode: int = 0o700) -> None:
    """Make a folder with a marker file, by default private to this user. If the folder exists, it must have the marker.

    Args:
        path: the folder; missing parent folders are made too.
        kind: the kind of its contents and their format version, such as ``cache 5``.
        mode: as for ``os.mkdir``.

    Raises:
        ForeignFile: the folder exists and cedar did not make it.
        OSError: the folder cannot be made.
    """
    os.makedirs(os.path.dirname(path) or ".", mode=mode, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode)
    if is_owned(path, kind):
        return
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        raise ForeignFile(f"{path!r} is not a folder")
    if foreign := holds_foreign(path, kind):
        raise ForeignFile(f"{path!r} holds what cedar did not write, such as {foreign!r}")
    write_whole(os.path.join(path, MARK), mark_of(kind))


def holds_foreign(path: str, kind: str) -> str:
    """Return the first name in a folder that lacks this kind's marker; "" if the folder is empty or has the marker."""
    names = sorted(name for name in os.listdir(path) if not name.startswith((f"{MARK}-", f".{MARK}.tmp-")))
    return names[0] if names and not is_owned(path, kind) else ""  # another thread may just have added the marker


def is_owned(path: str, kind: str) -> bool:
    """Whether a folder exists, is not a link, and has the marker of this kind."""
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            return False
        with open(os.path.join(path, MARK), "rb") as file:
            return file.read(_MAX_MARK_BYTES) == mark_of(kind)
    except OSError:
        return False


def remove_file(folder: str, name: str, kind: str, names: re.Pattern[str]) -> bool:
    """Remove a regular file if its name matches the pattern and its folder has the marker; return whether it did.

    The file may be in a subfolder that is not a link.
    """
    path = os.path.join(folder, name)
    if not names.fullmatch(name) or not is_owned(folder, kind):
        return False
    inside = os.path.join(os.path.realpath(folder), os.path.dirname(name))
    if os.path.realpath(os.path.dirname(path)) != inside.rstrip(os.sep):
        return False
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return False
        os.unlink(path)
    except OSError:
        return False
    return True


def remove_tree(path: str, kind: str) -> bool:
    """Remove a folder and its contents if it has the marker; return whether that was the case."""
    if not is_owned(path, kind):
        return False
    shutil.rmtree(path, ignore_errors=True)
    return True


def temporary_folder(kind: str) -> str:
    """Make a private folder with a marker in the system's temporary directory."""
    path = tempfile.mkdtemp(prefix=f"cedar-{kind}-")
    write_whole(os.path.join(path, MARK), mark_of(kind))
    return path
