"""Storage that is not a local file: every request goes through one account, which tries again what may pass."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cedar.core.asking import RequestOwner, asker
from cedar.core.errors import PipelineError, user_site
from cedar.core.faults import ShortRead, fault_of
from cedar.core.redact import StorageOptions, redact_url
from cedar.core.requests import RequestPatience, RequestStats

_T = TypeVar("_T")
_LEAST = 64 << 10  # bytes that a small read asks for,
_PIECE = 16 << 20  # bytes of one request; larger ranges are fetched in pieces
_MOST = 8 << 20  # and what a file that is read from its beginning to its end asks for in time


@dataclass(frozen=True)
class Remote:
    """A filesystem of fsspec, and the account of the source that reads it.

    Args:
        fs: the filesystem; pickled, its credentials travel with it.
        account: of requests.
        store: tells it from stores that other storage options lead to.
    """

    fs: Any
    account: RequestStats = field(default_factory=RequestStats, compare=False)
    store: str = ""

    @staticmethod
    def at(url: str, options: StorageOptions | None, account: RequestStats | None = None) -> tuple[Remote, str]:
        """The storage of a URL, and the path there."""
        import fsspec

        fs, path = fsspec.url_to_fs(url, **dict(options or {}))
        return Remote(
            fs, account or RequestStats(RequestPatience.of_environment()), options.mark if options else ""
        ), path

    def url(self, path: str) -> str:
        """What users see of a path: no credentials."""
        return redact_url(str(self.fs.unstrip_protocol(path)).replace("memory:///", "memory://"))

    def call(self, path: str, request: Callable[[], _T]) -> _T:
        """A call of the filesystem that may be made twice, such as one that lists."""
        return self.account.ask(self.url(path), lambda _: request())

    def fetch(self, path: str, start: int, stop: int | None, size: int | None, on: RequestOwner | None = None) -> bytes:
        """Bytes ``start`` to ``stop``; cut short only where the file of ``size`` bytes ends.

        Raises:
            SourceError: the storage fails, or continues giving fewer bytes.
        """
        if size is not None:
            stop = size if stop is None else min(stop, size)
        if stop is None or stop - start <= _PIECE:
            return b"" if stop is not None and start >= stop else self._piece(path, start, stop, size, on)
        starts = range(start, stop, _PIECE)
        return b"".join(self._piece(path, at, min(at + _PIECE, stop), size, on) for at in starts)

    def _piece(self, path: str, start: int, stop: int | None, size: int | None, on: RequestOwner | None) -> bytes:
        """One request, of which each attempt has a quarter of the time that all of them have."""
        most = self.account.patience.seconds / 4

        def request(left: float) -> bytes:
            return _checked(self._get(path, start, stop, min(left, most)), start, stop, size)

        return self.account.ask(self.url(path), request, on)

    def _get(self, path: str, start: int, stop: int | None, seconds: float) -> bytes:
        whole = start == 0 and stop is None
        arguments: dict[str, Any] = {} if whole else {"start": start, "end": stop}
        if not is_asynchronous(self.fs):
            return bytes(self.fs.cat_file(path, **arguments))
        import asyncio

        from fsspec.asyn import sync

        async def bounded() -> bytes:  # cancelled, not only given up, when the time is over
            return bytes(await asyncio.wait_for(self.fs._cat_file(path, **arguments), seconds))

        return bytes(sync(self.fs.loop, bounded))

    def open(self, path: str, size: int | None) -> RemoteFile:
        """A file to read from."""
        return RemoteFile(self, path, size)


def _checked(data: bytes, start: int, stop: int | None, size: int | None) -> bytes:
    """The bytes asked for. Some servers know no ranges and send all of a file."""
    if size is None or stop is None:
        return data
    if len(data) == size and len(data) > stop - start:
        return data[start:stop]
    if len(data) > stop - start:
        raise ValueError(f"{len(data)} bytes received, {stop - start} requested")
    if len(data) < stop - start:
        raise ShortRead(f"{len(data)} of {stop - start} bytes from byte {start}; {size} when listed")
    return data


class RemoteFile(io.RawIOBase):
    """A file on other storage, for reading; a read returns all bytes asked for, up to the end.

    Filesystems that answer ranges are asked for ranges, which grow while a file is read on. Of others, such as members
    of archives, a handle is kept, and opened again after a fault.
    """

    def __init__(self, remote: Remote, path: str, size: int | None) -> None:
        super().__init__()
        if size is None:  # not all listings tell, but a file alone mostly does
            size = remote.call(path, lambda: remote.fs.info(path)).get("size")
        self._remote, self._path, self._size = remote, path, size
        self._on = asker()
        self._position = 0
        self._held, self._start = b"", 0  # what was fetched, and where it begins
        self._block = _LEAST
        self._handle: Any = None
        self._ranges = size is not None and is_asynchronous(remote.fs)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._size is not None

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if self._size is None:
            raise io.UnsupportedOperation("the storage does not tell the file's size")
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def read(self, size: int | None = -1) -> bytes:
        """``size`` bytes, fewer at the end of the file only; all that are left for -1."""
        if size is None or size < 0:
            return self.readall()
        if self._size is None:
            return self._advance(self._through(size))
        size = max(0, min(size, self._size - self._position))
        return self._advance(self._range(self._position, self._position + size)) if size else b""

    def readall(self) -> bytes:
        if self._size is not None:
            return self.read(max(0, self._size - self._position))
        parts = []
        while part := self.read(_MOST):
            parts.append(part)
        return b"".join(parts)

    def _advance(self, data: bytes) -> bytes:
        self._position += len(data)
        return data

    def _range(self, start: int, stop: int) -> bytes:
        """Out of what is held, and the rest from the storage."""
        end = self._start + len(self._held)
        head = b""
        if self._start <= start < end:
            head = self._held[start - self._start : stop - self._start]
            start += len(head)
        if start == stop:
            return head
        on = start == end and start > 0
        self._block = min(2 * self._block, _MOST) if on else _LEAST
        upto = min(max(stop, start + self._block), self._size or stop)
        fetch = self._remote.fetch
        data = fetch(self._path, start, upto, self._size, self._on) if self._ranges else self._kept(start, upto)
        # What is read at once is not read again; of the rest the tail, or what came along, may be.
        self._held, self._start = (data, start) if len(data) <= _MOST else (b"", upto)
        return head + data[: stop - start]

    def _kept(self, start: int, stop: int) -> bytes:
        """From the handle."""
        return self._by_handle(lambda handle: _exactly(handle, start, stop, self._size))

    def _through(self, size: int) -> bytes:
        """The next bytes of a file whose size is unknown: a short one is its end."""
        return self._by_handle(lambda handle: _next(handle, self._position, size))

    def _by_handle(self, work: Callable[[Any], bytes]) -> bytes:
        """``work`` on the handle, which does not outlive a failure."""

        def request(_: float) -> bytes:
            try:
                if self._handle is None:
                    self._handle = self._remote.fs.open(self._path, "rb")
                return work(self._handle)
            except BaseException:
                self._drop()
                raise

        return self._remote.account.ask(self._remote.url(self._path), request, self._on)

    def _drop(self) -> None:
        handle, self._handle = self._handle, None
        with contextlib.suppress(Exception):  # it is broken already
            if handle is not None:
                handle.close()

    def close(self) -> None:
        self._drop()
        self._held = b""
        super().close()


def _exactly(handle: Any, start: int, stop: int, size: int | None) -> bytes:
    if handle.tell() != start:
        handle.seek(start)
    parts = []
    at = start
    while at < stop and (part := handle.read(stop - at)):
        parts.append(part)
        at += len(part)
    return _checked(parts[0] if len(parts) == 1 else b"".join(parts), start, stop, size)


def _next(handle: Any, position: int, size: int) -> bytes:
    """Read on at ``position``; a new handle is read up to there first."""
    at = handle.tell()
    while at < position:
        part = handle.read(min(_MOST, position - at))
        if not part:
            raise ShortRead(f"the file ends at byte {at}, it continued beyond byte {position} before")
        at += len(part)
    return bytes(handle.read(size))


def as_options(given: Mapping[str, Any] | None) -> StorageOptions | None:
    """Options of a filesystem as given; None if there are none.

    Raises:
        PipelineError: they are something else than a dict with names.
    """
    if not isinstance(given, Mapping | None) or not all(isinstance(name, str) for name in given or ()):
        raise PipelineError(
            f"storage_options= takes a dict of names and values, not {type(given).__name__}", site=user_site()
        )
    return StorageOptions(given) if given else None


def is_remote(path: str) -> bool:
    """Whether other storage than this machine's files is meant."""
    return "://" in path and not path.startswith(("file://", "local://"))


def local_path(path: str) -> str:
    """The absolute path of a local one."""
    return os.path.abspath(os.path.expanduser(path.split("://", 1)[-1]))


def is_asynchronous(fs: Any) -> bool:
    """The filesystem is, and so is the one inside it, if there is one: ``dir`` calls itself so around any."""
    inside = getattr(fs, "fs", None)
    return bool(getattr(fs, "async_impl", False)) and (inside is None or is_asynchronous(inside))


def kind_of(fs: Any, path: str) -> str | None:
    """What a path is, "file" or "directory"; None if it is not there. (``exists`` takes every failure for a no.)"""
    try:
        return str(fs.info(path)["type"])
    except FileNotFoundError as error:
        if fault_of(error) is not None:  # some filesystems call all failures so
            raise
        return None


def upload(remote: Remote, local: str, path: str) -> None:
    """A local file as a new one on the storage; rebuilt from its beginning after a fault.

    Raises:
        SourceError: the storage fails.
    """
    remote.call(path, lambda: remote.fs.put_file(local, path))


def rename(remote: Remote, old: str, new: str) -> None:
    """Give a file another name; where the storage has no renames it is copied and removed, each tried by itself.

    Raises:
        SourceError: the storage fails.
    """
    from fsspec.spec import AbstractFileSystem

    fs = remote.fs
    if type(fs).mv is AbstractFileSystem.mv:
        remote.call(new, lambda: fs.cp_file(old, new))
        with contextlib.suppress(FileNotFoundError):  # it was removed, but the answer was lost
            remote.call(old, lambda: fs.rm_file(old))
        return
    attempts = 0

    def move() -> None:
        nonlocal attempts
        attempts += 1
        if attempts > 1 and kind_of(fs, old) is None and kind_of(fs, new) is not None:
            return  # it was done, but the answer was lost
        fs.mv(old, new)

    remote.call(new, move)
