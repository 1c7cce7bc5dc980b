"""Read files that a listing contains, completely, by byte range or with decompression, and detect that they changed.

A file of unchanged name and size is compared by modification time, tag, and samples of the contents.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cedar.core.errors import CedarError, SourceError
from cedar.core.limits import DEFAULT, LimitedDecompression, Limits
from cedar.core.printable import redact, redacted
from cedar.core.remote import Remote, is_asynchronous
from cedar.core.requests import status_of
from cedar.datasets.base import SKIPPABLE, skippable

Stamp: TypeAlias = "tuple[int, int, int] | tuple[str, str] | None"
_STAMP_KEYS = ("ETag", "etag", "version_id", "generation", "md5", "crc32c", "LastModified", "last_modified", "mtime",
            "modified", "updated", "created")  # fmt: skip

_PIECE = 16 << 10  # bytes per sample, three samples per file; a file of up to four times this is read whole
BUCKETS = 16  # number of groups of consecutive files ("runs") for which a state has hashes
_SAMPLED_FILES = 4  # files per run whose contents are sampled
THREADS = 16
_T = TypeVar("_T")
_R = TypeVar("_R")
Bytes = npt.NDArray[np.uint8]
_checked_stamps: set[tuple[Any, str, Stamp]] = set()
_MAX_CHECKED_STAMPS = 1 << 16
_COMPRESSED_READ_BYTES = 1 << 16  # compressed bytes read at a time
_CODECS = {".gz": "gzip", ".tgz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4", ".xz": "xz"}
_FORMATS = {  # first bytes of a file -> its encoding, or the suffix of its compression format
    rb"\xff\xfe\0\0|\0\0\xfe\xff": "UTF-32", rb"\xff\xfe|\xfe\xff|([^\0]\0){2}|(\0[^\0]){2}": "UTF-16",
    rb"\x1f\x8b": ".gz", rb"BZh[1-9]1AY&SY": ".bz2", rb"\xfd7zXZ\0": ".xz", rb"\x28\xb5\x2f\xfd": ".zst",
}  # fmt: skip


@dataclass(frozen=True, repr=False)
class File:
    """A file of a listing.

    Args:
        path: the path to open, in the form that the file's filesystem expects.
        name: the path relative to the listed directory, or to the part of the glob before the first wildcard.
        size: bytes, None if the storage does not report it.
        remote: the remote storage; None for local files.
        limits: limits on memory and sizes when reading the file.
        stamp: a value that changes with the file: the modification time in ns, inode and device of a local file; the
            tag or time that other storage reports; None if the storage reports neither.
    """

    path: str
    name: str
    size: int | None
    remote: Remote | None = None
    limits: Limits = DEFAULT
    stamp: Stamp = None

    @property
    def url(self) -> str:
        """Return the file's name for messages: an absolute path, or a URL without credentials."""
        return self.path if self.remote is None else self.remote.url(self.path)

    @property
    def identity_parts(self) -> list[Any]:
        """Return the file's location, size and time of last modification."""
        store = self.remote.store if self.remote is not None else ""
        return [self.url, self.size, portable_stamp(self.stamp), *([store] if store else [])]

    def __repr__(self) -> str:
        return f"File({self.url!r}, {self.size} bytes)"


def path_value(file: File) -> str:
    """Return the file's name as a value of a column ``path``.

    Raises:
        SourceError: the name is not UTF-8.
    """
    url = file.url
    try:
        url.encode()
    except UnicodeEncodeError as error:
        raise SourceError(f"{url!a}: the file's name is not UTF-8", fix=f"rename the file{SKIPPABLE}") from error
    return url


@contextmanager
def reading(url: str, part: str = "") -> Iterator[None]:
    """Convert any error while reading ``url`` into a SourceError with the URL and ``part``, the part being read."""
    where = f"{url}, {part}" if part else url
    try:
        yield
    except CedarError as error:
        skippable(error)
        raise
    except FileNotFoundError as error:
        cause = redacted(error)
        raise SourceError(
            f"{where}: the file no longer exists; it did when the files were listed",
            fix="restore it, or build the pipeline again to list the files again; if it has a manifest, update it: "
            f"cedar data manifest PATHS --out FILE{SKIPPABLE}",
        ) from cause
    except PermissionError as error:
        cause = redacted(error)
        fix = f"check the file's owner and mode{SKIPPABLE}"
        raise SourceError(f"{where}: no permission to read it", fix=fix) from cause
    except Exception as error:  # noqa: BLE001 - decoders and filesystems raise anything
        cause = redacted(error)
        text = redact(" ".join(str(error).split()))[:300] or type(error).__name__
        fix = "check that the file is complete, or leave it out of the paths"
        if status_of(error) in {401, 403}:
            fix = "check the credentials and their permissions"
        raise SourceError(f"{where}: cannot be read: {text}", fix=f"{fix}{SKIPPABLE}") from cause


def concurrently(work: Callable[[_T], _R], items: Sequence[_T], threads: int = THREADS) -> list[_R]:
    """Run ``work`` on each item in up to ``threads`` threads and return the results in order."""
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(threads, len(items)), thread_name_prefix="cedar-list") as pool:
        futures = [pool.submit(copy_context().run, work, item) for item in items]
        try:
            return [future.result() for future in futures]
        finally:  # after an error, cancel the remaining calls
            for future in futures:
                future.cancel()


def compression_of(file: File) -> str | None:
    """Return the compression codec for a file's extension."""
    return _CODECS.get(os.path.splitext(file.name)[1].lower())


def open_stored(file: File) -> Any:
    """Return a file object over the stored bytes, without decompression.

    Raises:
        SourceError: a local file is not the one that was listed.
    """
    if file.remote is not None:
        return file.remote.open(file.path, file.size)
    stream = open(file.path, "rb")  # noqa: SIM115 - the caller closes it
    try:
        check_unchanged(file, os.fstat(stream.fileno()))
    except BaseException:
        stream.close()
        raise
    return stream


def open_local(file: File) -> Any:
    """Open a local file whose reads release the GIL.

    Raises:
        SourceError: the file is not the one that was listed.
    """
    stream = pa.OSFile(file.path)
    try:
        check_unchanged(file)
    except BaseException:
        stream.close()
        raise
    return stream


def open_file(file: File) -> Any:
    """Return a file object over the decompressed bytes; reading fails if they exceed the decompression limit."""
    codec = compression_of(file)
    if codec is None:
        return open_stored(file)
    if codec == "xz":
        raw = open_stored(file)
        return LimitedDecompression(io.BufferedReader(_Xz(raw)), raw, file.url, file.limits)
    raw = open_local(file) if file.remote is None else pa.PythonFile(open_stored(file))
    return LimitedDecompression(pa.CompressedInputStream(raw, codec), raw, file.url, file.limits)


def actual_format(file: File) -> tuple[str, str] | None:
    """Return the format of a file that is not UTF-8, and the advice for messages; None if the format is unknown."""
    with reading(file.url), open_file(file) as stream:
        head = stream.read(16)
    kind = next((kind for start, kind in _FORMATS.items() if re.match(start, head)), None)
    if kind in _CODECS:
        return (
            f"it is compressed with {_CODECS[kind]}, which its name does not say",
            f"give it a name that ends with {kind}",
        )
    return None if kind is None else (f"it is {kind}, not UTF-8", f"convert it: iconv -f {kind} -t UTF-8")


class _Xz(io.RawIOBase):
    """Decompress xz strictly: ``lzma.open`` would stop without an error at a damaged header of a later stream."""

    def __init__(self, raw: Any) -> None:
        from lzma import LZMADecompressor  # not all builds of Python include lzma

        super().__init__()
        self._raw, self._new, self._decompressor = raw, LZMADecompressor, LZMADecompressor()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = b""
        while not data:
            stored = b""
            if self._decompressor.eof:
                stored = self._decompressor.unused_data.lstrip(b"\0")  # streams may be padded with zeros
                while not stored and (more := self._raw.read(_COMPRESSED_READ_BYTES)):
                    stored = more.lstrip(b"\0")
                if not stored:
                    return 0
                self._decompressor = self._new()
            elif self._decompressor.needs_input and not (stored := self._raw.read(_COMPRESSED_READ_BYTES)):
                raise EOFError("the file ends early")
            data = self._decompressor.decompress(stored, len(buffer))
        buffer[: len(data)] = data
        return len(data)


def open_native(file: File) -> Any:
    """Return an Arrow input stream over the decompressed bytes; local reads release the GIL."""
    if file.remote is None and compression_of(file) is None:
        return open_local(file)
    return pa.PythonFile(open_file(file))


def check_unchanged(file: File, stat: os.stat_result | None = None) -> None:
    """Raise SourceError if a file is not the one that was listed.

    For local files, every call compares size, modification time and inode. For other storage, it compares the reported
    tag or time; if this takes a network request, each process sends it once per file.

    Args:
        file: a file of a listing.
        stat: the status of a local file that is already open.
    """
    key = (file.remote, file.url, file.stamp)
    if file.remote is not None:
        if file.stamp is None or key in _checked_stamps:
            return
        size, stamp = file.size, _remote_stamp(file.remote, file.path, str(file.stamp[0]))
    else:
        stat = os.stat(file.path) if stat is None else stat
        size, stamp = stat.st_size, stamp_of_stat(stat)
    change = ""
    if file.size is not None and size is not None and size != file.size:
        change = f"{file.size} bytes when listed, {size} now"
    elif stamps_differ(file.stamp, stamp):
        change = "it was rewritten or replaced after it was listed"
    if change:
        raise SourceError(
            f"{file.url}: changed while in use: {change}",
            fix="write new data under new names, or build the pipeline again; if it has a manifest, update it: "
            "cedar data manifest PATHS --out FILE",
        )
    if file.remote is not None and is_asynchronous(file.remote.fs):
        if len(_checked_stamps) > _MAX_CHECKED_STAMPS:
            _checked_stamps.clear()
        _checked_stamps.add(key)


def _remote_stamp(remote: Remote, path: str, name: str) -> Stamp:
    def info() -> dict[str, Any]:
        remote.fs.invalidate_cache(path.rpartition("/")[0])  # else fsspec may answer from the listing
        return dict(remote.fs.info(path))

    return stamp_of_info(remote.call(path, info), name)


def read_range(file: File, start: int, stop: int) -> Bytes:
    """Return bytes ``start`` to ``stop`` of an uncompressed file; fewer if the file ends earlier."""
    with reading(file.url):
        if file.remote is not None:
            check_unchanged(file)
            return np.frombuffer(file.remote.fetch(file.path, start, stop, file.size), dtype=np.uint8)
        with open(file.path, "rb", buffering=0) as stream:
            stat = os.fstat(stream.fileno())
            check_unchanged(file, stat)
            size = stat.st_size
            stream.seek(start)
            data = np.empty(max(0, min(stop, size) - start), dtype=np.uint8)
            _fill(stream, data)
            return data


def read_whole(file: File, into: memoryview) -> None:
    """Read a local file into ``into``, a buffer of the file's listed size."""
    with reading(file.url):
        descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            check_unchanged(file, os.fstat(descriptor))
            while into:
                count = os.readv(descriptor, [into])
                if not count:
                    raise EOFError("the file ends early")
                into = into[count:]
        finally:
            os.close(descriptor)


def _fill(stream: Any, data: Any) -> None:
    view = memoryview(data)
    while view:
        count = stream.readinto(view)
        if not count:
            raise EOFError("the file ends early")
        view = view[count:]


def marks_of(files: Sequence[File]) -> tuple[list[str], list[str]]:
    """Return the stamps and content hashes of groups of files, for ``stamps.changed_runs`` to compare."""
    chosen = [file for number in range(min(BUCKETS, len(files))) for file in sampled_files(run_of(files, number))]
    reported = dict(zip((file.url for file in chosen), concurrently(_contents, chosen), strict=True))
    stamps = digest_runs(files, lambda file: portable_stamp(file.stamp))
    return stamps, digest_runs(files, lambda file: reported[file.url], some=True)


def _contents(file: File) -> str | None:
    """Return a hash of samples of a file; None if the file cannot be read or its size is unknown."""
    if file.size is None:
        return None
    state = hashlib.blake2b(digest_size=8)
    try:
        for start, stop in pieces(file.size):
            if file.remote is not None:
                state.update(file.remote.fetch(file.path, start, stop, file.size))
                continue
            with open(file.path, "rb", buffering=0) as stream:
                stream.seek(start)
                state.update(stream.read(stop - start))
    except Exception:  # noqa: BLE001 - a removed file or failing storage must not prevent saving a state
        return None
    return state.hexdigest()


def stamp_of_stat(stat: os.stat_result) -> Stamp:
    """Return a local file's modification time in ns, inode and device."""
    return stat.st_mtime_ns, stat.st_ino, stat.st_dev


def stamp_of_info(info: dict[str, Any], name: str = "") -> Stamp:
    """Return the name and value of the most specific tag or time that fsspec reports for a file; None without any.

    Args:
        info: the result of fsspec's ``info``, or an entry of ``ls``.
        name: the tag or time to return, for comparison with an earlier stamp; "" chooses the most specific one.
    """
    for each in (name,) if name else _STAMP_KEYS:
        value = info.get(each)
        if value is not None:
            return each, str(value.timestamp() if isinstance(value, datetime) else value).strip('"')
    return None


def portable_stamp(stamp: Stamp) -> Any:
    """Return a stamp without the device number, which differs between machines."""
    return None if stamp is None else list(stamp[:2])


def stamps_differ(listed: Stamp, now: Stamp) -> bool:
    """Return whether a file's stamps show that the file changed after it was listed.

    Inodes are compared only on the same device, since another machine may have a copy of the file.
    """
    if listed is None or now is None:
        return False
    if len(listed) == len(now) == 3:
        return listed[0] != now[0] or (listed[2] == now[2] and listed[1] != now[1])
    return listed != now


def pieces(size: int) -> list[tuple[int, int]]:
    """Return the byte ranges to sample: all of a small file, or the beginning, middle and end of a larger file."""
    if size <= 4 * _PIECE:
        return [(0, size)] if size else []
    starts = (0, (size - _PIECE) // 2, size - _PIECE)
    return [(start, start + _PIECE) for start in starts]


def sampled_files(run: Sequence[Any]) -> Sequence[Any]:
    """Return the files of a run whose contents are sampled."""
    return run[:: -(-len(run) // _SAMPLED_FILES)]


def digest_runs(files: Sequence[Any], each: Callable[[Any], Any], some: bool = False) -> list[str]:
    """Return a hash of 8 hex digits per run of files, over ``each(file)`` of all or ``some`` (sampled) files.

    A run's hash is "" if ``each`` returns None for one of its files.
    """
    digests = []
    for number in range(min(BUCKETS, len(files))):
        run = run_of(files, number)
        reported = [each(file) for file in (sampled_files(run) if some else run)]
        text = json.dumps([len(run), *reported])
        digests.append("" if any(one is None for one in reported) else hashlib.sha256(text.encode()).hexdigest()[:8])
    return digests


def run_of(files: Sequence[Any], number: int) -> Sequence[Any]:
    """Return the files of run ``number``."""
    count = min(BUCKETS, len(files))
    return files[len(files) * number // count : len(files) * (number + 1) // count]


def changed_runs(files: int, before: tuple[list[str], list[str]], now: tuple[list[str], list[str]]) -> list[int]:
    """Return the indices of the runs whose files changed.

    Runs with equal stamps have not changed. Runs with other stamps but equal contents may be copies, and count as
    unchanged; but if some files are not sampled, only if the stamps of all runs differ, as after copying a dataset.

    Args:
        files: number of files.
        before: earlier stamps and contents, as returned by ``digest_runs``.
        now: current stamps and contents.
    """
    differing = [i for i, (a, b) in enumerate(zip(before[0], now[0], strict=True)) if a != b or not a]
    all_sampled = files <= BUCKETS * _SAMPLED_FILES or len(differing) == len(now[0])
    return [i for i in differing if not (all_sampled and before[1][i] and before[1][i] == now[1][i])]
