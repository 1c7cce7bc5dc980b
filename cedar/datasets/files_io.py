"""Opening files: whole, by byte range, and through their compression."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cedar.datasets.limits import Inflated
from cedar.datasets.listing import File, reading
from cedar.errors import SourceError

Bytes = npt.NDArray[np.uint8]

_CODECS = {".gz": "gzip", ".tgz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4", ".xz": "xz"}


def compression_of(file: File) -> str | None:
    """The codec that a file's extension names."""
    return _CODECS.get(os.path.splitext(file.name)[1].lower())


def open_stored(file: File) -> Any:
    """A file object over the bytes as they are stored."""
    return open(file.path, "rb") if file.remote is None else file.remote.open(file.path, file.size)


def open_file(file: File) -> Any:
    """A file object over the decompressed bytes; one that decompresses to too many fails."""
    codec = compression_of(file)
    if codec is None:
        return open_stored(file)
    if codec == "xz":
        import lzma

        raw = open_stored(file)
        return Inflated(lzma.open(raw), raw, file.url, file.limits)
    raw = pa.OSFile(file.path) if file.remote is None else pa.PythonFile(open_stored(file))
    return Inflated(pa.CompressedInputStream(raw, codec), raw, file.url, file.limits)


def open_native(file: File) -> Any:
    """An Arrow input stream over the decompressed bytes; local ones are read without the GIL."""
    if file.remote is None and compression_of(file) is None:
        return pa.OSFile(file.path)
    return pa.PythonFile(open_file(file))


def check_unchanged(file: File, size: int | None = None) -> None:
    """Raises SourceError where a local file has another size than when it was listed."""
    if file.remote is None and size is None:
        size = os.stat(file.path).st_size
    if size is not None and file.size is not None and size != file.size:
        raise SourceError(
            f"{file.url}: changed while in use: {file.size} bytes when listed, {size} now",
            fix="write new data under new names, or build the pipeline again",
        )


def read_range(file: File, start: int, stop: int) -> Bytes:
    """Bytes ``start`` to ``stop`` of an uncompressed file, cut short at its end."""
    with reading(file.url):
        if file.remote is not None:
            return np.frombuffer(file.remote.fetch(file.path, start, stop, file.size), dtype=np.uint8)
        with open(file.path, "rb", buffering=0) as stream:
            size = os.fstat(stream.fileno()).st_size
            check_unchanged(file, size)
            stream.seek(start)
            data = np.empty(max(0, min(stop, size) - start), dtype=np.uint8)
            _fill(stream, data)
            return data


def read_whole(file: File, into: memoryview) -> None:
    """The bytes of a local file, as many as were listed."""
    with reading(file.url):
        descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            check_unchanged(file, os.fstat(descriptor).st_size)
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
