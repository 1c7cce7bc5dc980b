"""Read the lines of text files: all of them as rows, or those of a byte range for readers of other formats."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from cedar.core.columns import Column, ColumnType, Index, from_numbers, repeated
from cedar.core.errors import SourceError, invalid_call
from cedar.core.limits import too_much
from cedar.core.process import Lock
from cedar.datasets.base import Chunk, Split, once, selected
from cedar.datasets.files_io import (
    Bytes,
    File,
    actual_format,
    check_unchanged,
    compression_of,
    concurrently,
    open_file,
    path_value,
    read_range,
    reading,
)
from cedar.datasets.filesource import FileSource, Paths, as_paths
from cedar.datasets.listing import Listing
from cedar.datasets.split_table import SplitTable

SPLIT_BYTES = 8 << 20
_BLOCK = 4 << 20  # decompressed bytes per chunk of a compressed file
_SEARCH_BYTES = 1 << 16  # bytes read at a time when searching for the end of a line

_NEWLINE, _RETURN = 10, 13
_FIRST_NEWLINE = re.compile(rb"\n")

_PIECE_BYTES = 2 << 20  # bytes per chunk
_FIRST_BYTES = 256 << 10  # bytes of a split's first chunk; small, as a trainer may be waiting for it
_TYPES: dict[str, ColumnType] = {"path": pa.large_string(), "line": pa.int64(), "text": pa.large_string()}


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
        if len(lines.data) > file.limits.line_bytes:
            ends = lines.ends()
            starts = Lines.starts(ends)
            longest = int(np.argmax(ends - starts))
            if ends[longest] - starts[longest] > file.limits.line_bytes:
                raise _too_long_error(file, lines.start + int(starts[longest]))
        only_mark = lines.start == 0 and len(lines.data) == len(BOM_UTF8) and lines.data.tobytes() == BOM_UTF8
        if len(lines.data) and not only_mark:
            yield lines


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
    """Return the index of the first newline."""
    match = _FIRST_NEWLINE.search(data.data)  # stops at the first one and copies nothing
    return None if match is None else match.start()


def _find_last(data: Bytes) -> int:
    """Return the index of the last newline, or -1; search pieces from the end, since most lines are short."""
    stop, size = len(data), _SEARCH_BYTES
    while stop > 0:
        position = data[max(0, stop - size) : stop].tobytes().rfind(b"\n")
        if position >= 0:
            return max(0, stop - size) + position
        stop, size = stop - size, size * 2
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


class LineIndex:
    """A cache of the newline counts of byte ranges of files, from which line numbers are computed."""

    def __init__(self, known: dict[tuple[int, int], int] | None = None) -> None:
        self._known = known or {}
        self._lock = Lock()  # held while files are read; a process may be forked meanwhile

    def __reduce__(self) -> tuple[Any, ...]:
        return LineIndex, (dict(self._known),)

    def put(self, file: int, part: int, count: int) -> None:
        self._known[file, part] = count

    def before(self, file: int, part: int, listed_file: File, size: int) -> int:
        """Return the number of newlines in all ranges of ``size`` bytes before range ``part``; count missing ranges."""
        with self._lock:
            missing = [p for p in range(part) if (file, p) not in self._known]
            counts = concurrently(lambda p: count_newlines(listed_file, p * size, (p + 1) * size), missing)
            self._known.update(((file, p), count) for p, count in zip(missing, counts, strict=True))
            return sum(self._known[file, p] for p in range(part))


@dataclass(frozen=True, repr=False)
class TextSource(FileSource):
    """Lines of text files, in splits of 8 MiB; a compressed file is one streaming split.

    Args:
        errors: how to handle bytes that are not UTF-8: "strict" (SourceError) or "replace" (U+FFFD).
    """

    errors: Literal["strict", "replace"] = "strict"
    split_bytes: int = SPLIT_BYTES
    reader: ClassVar[str] = "read_text"

    @once
    def _lines(self) -> LineIndex:
        return LineIndex()

    def sound_splits(self) -> SplitTable:
        return line_splits(self.listing, self.split_bytes)

    def read(self, split: Split) -> Iterator[Chunk]:
        file = self.listing[split.file]
        names, number = self.schema(), 0
        for lines in read_lines(file, split):
            ends = lines.ends()
            if "line" in names and not split.streaming:
                number = self._first_line(file, split, lines)
            for begin, line_ends in _pieces(ends):
                columns: dict[str, Column] = {}
                count = len(line_ends)
                if "line" in names:
                    columns["line"] = from_numbers(np.arange(number, number + count))
                if "path" in names:
                    columns["path"] = repeated(path_value(file), count)
                piece = Lines(lines.data[begin : line_ends[-1] + 1], lines.start + begin)
                if "text" in names:
                    columns["text"] = self._text(file, piece, line_ends - begin)
                number += count
                yield Chunk(
                    {name: columns[name] for name in names}, Lines.starts(line_ends - begin) + piece.start, count
                )

    def _first_line(self, file: File, split: Split, lines: Lines) -> int:
        assert split.stop is not None
        before = self._lines.before(split.file, split.part, file, self.split_bytes)
        inside = lines.data[: split.stop - lines.start]
        # If a line continues from the previous range, its newline is in this range, before the first line of the range.
        reached_in = 1 if lines.start > split.start else 0
        self._lines.put(split.file, split.part, int(np.count_nonzero(inside == ord("\n"))) + reached_in)
        return before + reached_in

    def _text(self, file: File, lines: Lines, ends: np.ndarray[Any, np.dtype[np.int64]]) -> Column:
        column = text_column(lines, ends)
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as invalid:
            if self.errors == "replace":
                return pa.array([v.as_py().decode("utf-8", "replace") for v in column.view(pa.large_binary())]).cast(
                    pa.large_string()
                )
            raise _not_utf8(file, lines) from invalid
        return column

    def schema(self) -> dict[str, ColumnType]:
        return selected(_TYPES, self.columns, self.describe())


def _pieces(ends: Index) -> Iterator[tuple[int, Index]]:
    """Yield pieces of up to 2 MiB, which fit CPU caches: the start of the piece and the ends of its lines."""
    first = begin = 0
    size = _FIRST_BYTES
    while first < len(ends):
        last = max(int(np.searchsorted(ends, begin + size)), first + 1)
        yield begin, ends[first:last]
        first, begin, size = last, int(ends[last - 1]) + 1, min(2 * size, _PIECE_BYTES)


def _not_utf8(file: File, lines: Lines) -> SourceError:
    try:
        lines.data.tobytes().decode()
    except UnicodeDecodeError as error:
        offset = lines.start + error.start
        inside = " of the decompressed data" if compression_of(file) else ""
        problem = f"not utf-8: byte {error.object[error.start]:#04x} at byte offset {offset}{inside}"
        problem, fix = actual_format(file) or (problem, 'convert the file, or read_text(..., errors="replace")')
        return SourceError(f"{file.url}: {problem}", fix=fix)
    return SourceError(f"{file.url}: not utf-8, after byte offset {lines.start}")


def read_text(paths: Paths, *, errors: Literal["strict", "replace"] = "strict") -> TextSource:
    """Return the source that ``cedar.read_text`` uses."""
    if errors not in ("strict", "replace"):
        raise invalid_call(f'read_text: errors is "strict" or "replace", not {errors!r}')
    return TextSource(as_paths(paths, "read_text"), errors=errors)
