"""Read files completely, by byte range, or with decompression."""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cedar.core.errors import SourceError
from cedar.core.limits import LimitedDecompression
from cedar.core.remote import is_asynchronous
from cedar.datasets.listing import File, concurrently, reading
from cedar.datasets.stamps import (
    BUCKETS,
    Stamp,
    digest_runs,
    pieces,
    portable_stamp,
    run_of,
    sampled_files,
    stamp_of_info,
    stamp_of_stat,
    stamps_differ,
)  # fmt: skip

Bytes = npt.NDArray[np.uint8]

_checked_stamps: set[tuple[Any, str, Stamp]] = set()
_MAX_CHECKED_STAMPS = 1 << 16
_COMPRESSED_READ_BYTES = 1 << 16  # compressed bytes read at a time
_CODECS = {".gz": "gzip", ".tgz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4", ".xz": "xz"}

_FORMATS = {  # first bytes of a file -> its encoding, or the suffix of its compression format
    rb"\xff\xfe\0\0|\0\0\xfe\xff": "UTF-32", rb"\xff\xfe|\xfe\xff|([^\0]\0){2}|(\0[^\0]){2}": "UTF-16",
    rb"\x1f\x8b": ".gz", rb"BZh[1-9]1AY&SY": ".bz2", rb"\xfd7zXZ\0": ".xz", rb"\x28\xb5\x2f\xfd": ".zst",
}  # fmt: skip


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
    if file.remote is not None:
        size, stamp = file.size, _remote_stamp(file)
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
            "cedar data manifest",
        )


def _remote_stamp(file: File) -> Stamp:
    remote, stamp = file.remote, file.stamp
    if remote is None or stamp is None or (remote, file.url, stamp) in _checked_stamps:
        return stamp
    if is_asynchronous(remote.fs):
        if len(_checked_stamps) > _MAX_CHECKED_STAMPS:
            _checked_stamps.clear()
        _checked_stamps.add((remote, file.url, stamp))
    return stamp_of_info(remote.call(file.path, lambda: remote.fs.info(file.path)), str(stamp[0]))


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
