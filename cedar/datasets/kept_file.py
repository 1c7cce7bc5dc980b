"""Files of ours that processes share: whole or not there, made by one of them, and looked at when they are read."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Iterator

from cedar.core.redact import StorageOptions, redact_url
from cedar.core.remote import Remote, is_remote, local_path
from cedar.datasets.listing import reading
from cedar.store.whole_files import write_whole

_SUM = 32  # bytes
_WAIT = 600.0  # seconds for another process that makes it; then this one does
_LOOK = 0.05


class Damaged(ValueError):
    """A file that cannot be used: why."""


def sealed(mark: bytes, body: bytes | memoryview) -> bytes:
    """A mark of what it is, the SHA-256 of the rest, and that."""
    return b"".join([mark, hashlib.sha256(body).digest(), body])


def unsealed(mark: bytes, data: bytes) -> memoryview:
    """The rest.

    Raises:
        Damaged: it is not what was sealed.
    """
    head = len(mark) + _SUM
    body = memoryview(data)[head:]
    if len(data) < head or data[: len(mark)] != mark or hashlib.sha256(body).digest() != data[len(mark) : head]:
        raise Damaged("it is cut off, or bytes of it are others than were written")
    return body


def root_of(path: str, options: StorageOptions | None = None) -> tuple[Remote | None, str]:
    """The storage of a path, None for local ones, and the path there."""
    if not is_remote(path):
        return None, path
    with reading(redact_url(path)):
        return Remote.at(path, options)


def read_file(where: str, options: StorageOptions | None = None) -> bytes | None:
    """The bytes of a file; None where there is none."""
    with reading(redact_url(where)), contextlib.suppress(FileNotFoundError):
        if not is_remote(where):
            with open(local_path(where), "rb") as stream:
                return stream.read()
        remote, path = root_of(where, options)
        assert remote is not None
        return bytes(remote.call(path, lambda: remote.fs.cat_file(path)))
    return None


def write_file(where: str, data: bytes, options: StorageOptions | None = None) -> None:
    """All of it, or nothing."""
    if is_remote(where):
        remote, path = root_of(where, options)
        assert remote is not None
        remote.call(path, lambda: remote.fs.pipe_file(path, data))
        return
    write_whole(local_path(where), data)


@contextlib.contextmanager
def alone(where: str) -> Iterator[None]:
    """One process of those that see a folder makes a file there, and the others wait for it."""
    folder = None if is_remote(where) else os.path.dirname(local_path(where))
    if folder is None or not os.path.isdir(folder):
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        deadline = time.monotonic() + _WAIT
        while not _locked(handle) and time.monotonic() < deadline:
            time.sleep(_LOOK)
        yield
    finally:
        os.close(handle)


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a filesystem without locks: each makes its own, and the last one stays
        return True
    return True
