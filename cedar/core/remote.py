"""Storage other than local files. Every request goes through ``RequestStats``, which retries temporary failures."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cedar.core.errors import PipelineError, invalid_call
from cedar.core.printable import StorageOptions, redact_url
from cedar.core.requests import RequestOwner, RequestPatience, RequestStats, ShortRead, fault_of, request_owner

_T = TypeVar("_T")
_FIRST_READ_BYTES = 64 << 10  # bytes of the first request for a file
_REQUEST_BYTES = 16 << 20  # bytes per request; larger ranges are fetched in pieces
_MAX_READ_BYTES = 8 << 20  # maximum bytes to request ahead while a file is read sequentially


@dataclass(frozen=True)
class Remote:
    """An fsspec filesystem, and the request statistics of the source that reads it.

    Args:
        fs: the filesystem; pickling it includes its credentials.
        account: the statistics and retry budget of its requests.
        store: distinguishes stores that differ only in their storage options; see ``StorageOptions.mark``.
    """

    fs: Any
    account: RequestStats = field(default_factory=RequestStats, compare=False)
    store: str = ""

    @staticmethod
    def at(url: str, options: StorageOptions | None, account: RequestStats | None = None) -> tuple[Remote, str]:
        """Return the storage of a URL, and the path in that storage."""
        import fsspec

        fs, path = fsspec.url_to_fs(url, **dict(options or {}))
        return Remote(
            fs, account or RequestStats(RequestPatience.of_environment()), options.mark if options else ""
        ), path

    def url(self, path: str) -> str:
        """Return the URL of a path without credentials, for users."""
        return redact_url(str(self.fs.unstrip_protocol(path)).replace("memory:///", "memory://"))

    def call(self, path: str, request: Callable[[], _T]) -> _T:
        """Call the filesystem with retries. The call, such as a listing, must be safe to repeat."""
        return self.account.ask(self.url(path), lambda _: request())

    def fetch(self, path: str, start: int, stop: int | None, size: int | None, on: RequestOwner | None = None) -> bytes:
        """Return bytes ``start`` to ``stop``; fewer only at the end of the file, whose size is ``size``.

        Raises:
            SourceError: the storage fails, or sends fewer bytes repeatedly.
        """
        if size is not None:
            stop = size if stop is None else min(stop, size)
        if stop is None or stop - start <= _REQUEST_BYTES:
            return b"" if stop is not None and start >= stop else self._piece(path, start, stop, size, on)
        starts = range(start, stop, _REQUEST_BYTES)
        return b"".join(self._piece(path, at, min(at + _REQUEST_BYTES, stop), size, on) for at in starts)

    def _piece(self, path: str, start: int, stop: int | None, size: int | None, on: RequestOwner | None) -> bytes:
        """Send one request; each attempt may take a quarter of the time for all attempts."""
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

        async def bounded() -> bytes:  # this cancels the request at the timeout
            return bytes(await asyncio.wait_for(self.fs._cat_file(path, **arguments), seconds))

        return bytes(sync(self.fs.loop, bounded))

    def open(self, path: str, size: int | None) -> RemoteFile:
        """Open a file for reading."""
        return RemoteFile(self, path, size)


def _checked(data: bytes, start: int, stop: int | None, size: int | None) -> bytes:
    """Check the length of the bytes received. Some servers ignore ranges and send the whole file."""
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
    """A readable file on remote storage. A read returns all requested bytes, up to the end of the file.

    If the filesystem supports ranges, it requests ranges, which grow while the file is read sequentially. Otherwise,
    such as for members of archives, it reads from an open handle, and opens a new one after a fault.
    """

    def __init__(self, remote: Remote, path: str, size: int | None) -> None:
        super().__init__()
        if size is None:  # not in some listings, although ``info`` returns it
            size = remote.call(path, lambda: remote.fs.info(path)).get("size")
        self._remote, self._path, self._size = remote, path, size
        self._on = request_owner()
        self._position = 0
        self._buffer, self._start = b"", 0  # fetched bytes, and their position in the file
        self._block = _FIRST_READ_BYTES
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
            raise io.UnsupportedOperation("the storage does not report the file's size")
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def read(self, size: int | None = -1) -> bytes:
        """Read ``size`` bytes, or fewer at the end of the file; -1 reads to the end."""
        if size is None or size < 0:
            return self.readall()
        if self._size is None:
            count: int = size
            return self._advance(self._call_with_handle(lambda handle: _next(handle, self._position, count)))
        size = max(0, min(size, self._size - self._position))
        return self._advance(self._range(self._position, self._position + size)) if size else b""

    def readall(self) -> bytes:
        if self._size is not None:
            return self.read(max(0, self._size - self._position))
        parts = []
        while part := self.read(_MAX_READ_BYTES):
            parts.append(part)
        return b"".join(parts)

    def _advance(self, data: bytes) -> bytes:
        self._position += len(data)
        return data

    def _range(self, start: int, stop: int) -> bytes:
        """Return the bytes of a range: first from the buffer, the rest from the storage."""
        end = self._start + len(self._buffer)
        head = b""
        if self._start <= start < end:
            head = self._buffer[start - self._start : stop - self._start]
            start += len(head)
        if start == stop:
            return head
        on = start == end and start > 0
        self._block = min(2 * self._block, _MAX_READ_BYTES) if on else _FIRST_READ_BYTES
        upto = min(max(stop, start + self._block), self._size or stop)
        if self._ranges:
            data = self._remote.fetch(self._path, start, upto, self._size, self._on)
        else:
            data = self._call_with_handle(lambda handle: _exactly(handle, start, upto, self._size))
        # A large result is not buffered: its requested bytes are not needed again, and the rest can be fetched again.
        self._buffer, self._start = (data, start) if len(data) <= _MAX_READ_BYTES else (b"", upto)
        return head + data[: stop - start]

    def _call_with_handle(self, work: Callable[[Any], bytes]) -> bytes:
        """Call ``work`` with the handle, which is closed after a failure."""

        def request(_: float) -> bytes:
            try:
                if self._handle is None:
                    self._handle = self._remote.fs.open(self._path, "rb")
                return work(self._handle)
            except BaseException:
                self._close_handle()
                raise

        return self._remote.account.ask(self._remote.url(self._path), request, self._on)

    def _close_handle(self) -> None:
        handle, self._handle = self._handle, None
        with contextlib.suppress(Exception):  # closing a broken handle may fail
            if handle is not None:
                handle.close()

    def close(self) -> None:
        self._close_handle()
        self._buffer = b""
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
    """Read at ``position`` of a file of unknown size; fewer than ``size`` bytes mean its end.

    If the handle is new, the bytes before ``position`` are read and discarded first.
    """
    at = handle.tell()
    while at < position:
        part = handle.read(min(_MAX_READ_BYTES, position - at))
        if not part:
            raise ShortRead(f"the file ends at byte {at}, but had been read up to byte {position}")
        at += len(part)
    return bytes(handle.read(size))


def as_options(given: Mapping[str, Any] | None) -> StorageOptions | None:
    """Wrap the options of a filesystem; None if there are none.

    Raises:
        PipelineError: they are not a dict with names as keys.
    """
    if not isinstance(given, Mapping | None) or not all(isinstance(name, str) for name in given or ()):
        raise invalid_call(f"storage_options= takes a dict of names and values, not {type(given).__name__}")
    return StorageOptions(given) if given else None


def find_place(where: str, argument: str) -> tuple[Any, str]:
    """Return the filesystem and path of a directory or URL; ``argument`` names the argument in errors.

    Raises:
        PipelineError: no filesystem is installed for the URL.
    """
    import fsspec

    try:
        fs, path = fsspec.url_to_fs(where)
    except (ValueError, ImportError) as error:
        raise PipelineError(
            f"{argument}={where!r}: {error}", fix="give a directory, or a URL of a filesystem that fsspec has installed"
        ) from error
    return fs, path.rstrip("/")


def is_remote(path: str) -> bool:
    """Whether a path is not a local file."""
    return "://" in path and not path.startswith(("file://", "local://"))


def local_path(path: str) -> str:
    """Return the absolute path of a local path or URL."""
    return os.path.abspath(os.path.expanduser(path.split("://", 1)[-1]))


def is_asynchronous(fs: Any) -> bool:
    """Whether a filesystem and the one that it wraps are asynchronous. fsspec's ``dir`` always claims to be."""
    inside = getattr(fs, "fs", None)
    return bool(getattr(fs, "async_impl", False)) and (inside is None or is_asynchronous(inside))


def kind_of(fs: Any, path: str) -> str | None:
    """Return "file" or "directory"; None if the path does not exist. (``exists`` returns False on any failure.)"""
    try:
        return str(fs.info(path)["type"])
    except FileNotFoundError as error:
        if fault_of(error) is not None:  # some filesystems raise this error for all failures
            raise
        return None


def upload(remote: Remote, local: str, path: str) -> None:
    """Upload a local file under a new name. After a fault, the upload restarts from the beginning.

    Raises:
        SourceError: the storage fails.
    """
    remote.call(path, lambda: remote.fs.put_file(local, path))


def rename(remote: Remote, old: str, new: str) -> None:
    """Rename a file. If the storage cannot rename, copy the file and remove the old one, with separate retries.

    Raises:
        SourceError: the storage fails.
    """
    from fsspec.spec import AbstractFileSystem

    fs = remote.fs
    if type(fs).mv is AbstractFileSystem.mv:
        remote.call(new, lambda: fs.cp_file(old, new))
        with contextlib.suppress(FileNotFoundError):  # removed by an earlier attempt, whose response was lost
            remote.call(old, lambda: fs.rm_file(old))
        return
    attempts = 0

    def move() -> None:
        nonlocal attempts
        attempts += 1
        if attempts > 1 and kind_of(fs, old) is None and kind_of(fs, new) is not None:
            return  # renamed by an earlier attempt, whose response was lost
        fs.mv(old, new)

    remote.call(new, move)
