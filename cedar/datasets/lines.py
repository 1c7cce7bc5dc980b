"""Read the lines of byte ranges of text files, and find the byte offset of each line."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cedar.core.columns import Column, Index
from cedar.core.errors import SourceError
from cedar.core.limits import too_much
from cedar.datasets.base import Split
from cedar.datasets.files_io import Bytes, check_unchanged, compression_of, open_file, read_range
from cedar.datasets.listing import File, Listing, reading
from cedar.datasets.split_table import SplitTable

SPLIT_BYTES = 8 << 20
_BLOCK = 4 << 20  # decompressed bytes per chunk of a compressed file
_SEARCH_BYTES = 1 << 16  # bytes read at a time when searching for the end of a line
_NEWLINE, _RETURN = 10, 13


@dataclass(frozen=True)
class Lines:
    """A block of complete lines of a file.

    Args:
        data: the bytes of the lines, uint8; the newline of the file's last line may be missing.
        start: the byte offset of ``data`` in the (decompressed) file.
    """

    data: Bytes
    start: int

    def ends(self) -> Index:
        """Return the index in ``data`` of each line's newline; ``len(data)`` for a last line without a newline."""
        ends = np.flatnonzero(self.data == _NEWLINE)
        if len(self.data) and self.data[-1] != _NEWLINE:
            ends = np.append(ends, len(self.data))
        return ends

    @staticmethod
    def starts(ends: Index) -> Index:
        """Return the index in ``data`` of each line's first byte."""
        starts = np.zeros(len(ends), dtype=np.int64)
        starts[1:] = ends[:-1] + 1
        return starts


def line_splits(listing: Listing, size: int) -> SplitTable:
    """Split uncompressed files into byte ranges; a compressed file is one streaming split."""
    streams = np.array([compression_of(file) is not None or file.size is None for file in listing], dtype=bool)
    sizes = np.array([file.size or 0 for file in listing], dtype=np.int64)
    parts = np.where(streams, 1, -(-sizes // size))
    file = np.repeat(np.arange(len(listing)), parts)
    part = np.arange(len(file)) - np.repeat(np.cumsum(parts) - parts, parts)
    start, streaming = part * size, streams[file]
    stop = np.where(streaming, -1, np.minimum(start + size, sizes[file]))
    length = np.where(streaming, -1, stop - start)
    return SplitTable(file=file, start=start, stop=stop, bytes=length, part=part, streaming=streaming)


def whole_files(listing: Listing) -> SplitTable:
    """Return one streaming split per file, for files that can only be read from their beginning."""
    sizes = [-1 if compression_of(file) or file.size is None else file.size for file in listing]
    return SplitTable(file=np.arange(len(sizes)), bytes=np.array(sizes, dtype=np.int64), streaming=True)


def read_lines(file: File, split: Split) -> Iterator[Lines]:
    """Yield the lines that begin inside the split: one piece for a byte range, several for a streaming split.

    Raises:
        SourceError: a line is longer than the limit.
    """
    if split.streaming:
        pieces = _stream(file)
    else:
        assert split.stop is not None
        pieces = iter([_range(file, split.start, split.stop)])
    for lines in pieces:
        if len(lines.data):
            _check_length(file, lines)
            yield lines


def _check_length(file: File, lines: Lines) -> None:
    if len(lines.data) <= file.limits.line_bytes:
        return
    ends = lines.ends()
    starts = Lines.starts(ends)
    longest = int(np.argmax(ends - starts))
    if ends[longest] - starts[longest] > file.limits.line_bytes:
        raise _too_long_error(file, lines.start + int(starts[longest]))


def _too_long_error(file: File, start: int) -> SourceError:
    inside = " of the decompressed data" if compression_of(file) else ""
    return too_much(f"{file.url}: the line at byte {start}{inside}", "is longer than", "line_bytes", file.limits)


def _range(file: File, start: int, stop: int) -> Lines:
    """Return the lines whose first byte is in the byte range."""
    before = 1 if start else 0  # read the byte before ``start`` too: if it is a newline, a line begins at ``start``
    data = read_range(file, start - before, stop)
    begin = 0
    if before:
        newline = _find_newline(data)
        if newline is None:
            return Lines(data[:0], stop)  # the whole range is inside one line
        begin = newline + 1
    start = start - before + begin
    data = data[begin:]
    if start >= stop:
        return Lines(data[:0], stop)
    if data[-1] != _NEWLINE:
        last = start + _find_last(data) + 1
        data = np.concatenate([data, *_rest_of_line(file, stop, last)])
    return Lines(data, start)


def _rest_of_line(file: File, position: int, start: int) -> Iterator[Bytes]:
    """Yield the bytes of a line from ``position`` to its end; ``start`` is the offset at which the line begins."""
    size = _SEARCH_BYTES
    while True:
        if position - start > file.limits.line_bytes:
            raise _too_long_error(file, start)
        piece = read_range(file, position, position + size)
        newline = _find_newline(piece)
        if newline is not None:
            yield piece[: newline + 1]
            return
        yield piece
        if len(piece) < size:
            return
        position += size
        size *= 2


def _find_newline(data: Bytes) -> int | None:
    position = data.tobytes().find(b"\n") if len(data) <= _SEARCH_BYTES else _find_first(data)
    return position if position >= 0 else None


def _find_last(data: Bytes) -> int:
    """Return the index of the last newline, or -1; search pieces from the end, since most lines are short."""
    stop, size = len(data), _SEARCH_BYTES
    while stop > 0:
        position = data[max(0, stop - size) : stop].tobytes().rfind(b"\n")
        if position >= 0:
            return max(0, stop - size) + position
        stop, size = stop - size, size * 2
    return -1


def _find_first(data: Bytes) -> int:
    """Return the index of the first newline, or -1; search pieces of growing size, since most lines are short."""
    start, size = 0, _SEARCH_BYTES
    while start < len(data):
        position = data[start : start + size].tobytes().find(b"\n")
        if position >= 0:
            return start + position
        start, size = start + size, size * 2
    return -1


def _stream(file: File) -> Iterator[Lines]:
    position = 0
    pieces: list[Bytes] = []
    with reading(file.url):
        stream = open_file(file)
    with stream:
        while True:
            with reading(file.url, f"after byte {position}"):
                block = np.frombuffer(stream.read(_BLOCK), dtype=np.uint8)
                if not len(block):
                    check_unchanged(file)
                    break
            newlines = np.flatnonzero(block == _NEWLINE)
            if not len(newlines):
                pieces.append(block)
                if sum(map(len, pieces)) > file.limits.line_bytes:
                    raise _too_long_error(file, position)
                continue
            cut = int(newlines[-1]) + 1
            data = np.concatenate([*pieces, block[:cut]])
            yield Lines(data, position)
            position += len(data)
            pieces = [block[cut:]]
    rest = np.concatenate(pieces) if pieces else np.empty(0, dtype=np.uint8)
    if len(rest):
        yield Lines(rest, position)


def text_column(lines: Lines, ends: Index) -> Column:
    """Return lines as large_string without line ends (LF, CR LF) and byte order mark, and without checking UTF-8."""
    data = lines.data
    keep = np.ones(len(data), dtype=bool)
    keep[ends[ends < len(data)]] = False
    dropped = np.arange(len(ends), dtype=np.int64)  # number of bytes removed up to each line's end
    returns = (ends < len(data)) & (ends > Lines.starts(ends))
    returns[returns] = data[ends[returns] - 1] == _RETURN
    if returns.any():
        keep[ends[returns] - 1] = False
        dropped += np.cumsum(returns)
    if lines.start == 0 and data[: len(BOM_UTF8)].tobytes() == BOM_UTF8:
        keep[: len(BOM_UTF8)] = False
        dropped += len(BOM_UTF8)
    offsets = np.zeros(len(ends) + 1, dtype=np.int64)
    np.subtract(ends, dropped, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data[keep])]
    return pa.Array.from_buffers(pa.large_string(), len(ends), buffers)


def blank_lines(lines: Lines, ends: Index) -> Index:
    """Return the indices of blank lines, int64."""
    starts = Lines.starts(ends)
    lengths = ends - starts
    one = np.flatnonzero((lengths == 1) & (ends < len(lines.data)))
    returns = one[lines.data[starts[one]] == _RETURN]
    return np.sort(np.concatenate([np.flatnonzero(lengths == 0), returns]))


def count_newlines(file: File, start: int, stop: int) -> int:
    """Count the newlines in a byte range."""
    return int(np.count_nonzero(read_range(file, start, stop) == _NEWLINE))


def line_number(file: File, offset: int) -> int:
    """Return the 0-based number of the line at an offset in the decompressed file, by reading the file up to it."""
    if compression_of(file) is not None:
        count = 0
        with open_file(file) as stream:
            while offset > 0 and (block := stream.read(min(_BLOCK, offset))):
                count += block.count(b"\n")
                offset -= len(block)
        return count
    return sum(count_newlines(file, start, min(start + _BLOCK, offset)) for start in range(0, offset, _BLOCK))
