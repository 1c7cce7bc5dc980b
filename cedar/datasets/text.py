"""Read text files: each row is a line."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from cedar.core.columns import Column, ColumnType, Index
from cedar.core.errors import PipelineError, SourceError, missing_column, user_site
from cedar.datasets.base import Chunk, Split
from cedar.datasets.files_io import actual_format, compression_of
from cedar.datasets.filesource import FileSource
from cedar.datasets.lines import SPLIT_BYTES, Lines, count_newlines, line_splits, read_lines, text_column
from cedar.datasets.listing import File, Paths, as_paths, concurrently
from cedar.datasets.once import once
from cedar.datasets.split_table import SplitTable

_PIECE_BYTES = 2 << 20  # bytes per chunk
_FIRST_BYTES = 256 << 10  # bytes of a split's first chunk; small, as a trainer may be waiting for it
_TYPES: dict[str, ColumnType] = {"path": pa.large_string(), "line": pa.int64(), "text": pa.large_string()}


class LineIndex:
    """A cache of the newline counts of byte ranges of files, from which line numbers are computed."""

    def __init__(self, known: dict[tuple[int, int], int] | None = None) -> None:
        self._known = known or {}
        self._lock = threading.Lock()

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

    columns: tuple[str, ...] = ("path", "line", "text")
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
        number = 0
        for lines in read_lines(file, split):
            ends = lines.ends()
            if "line" in self.columns and not split.streaming:
                number = self._first_line(file, split, lines)
            for begin, line_ends in _pieces(ends):
                columns: dict[str, Column] = {}
                count = len(line_ends)
                if "line" in self.columns:
                    columns["line"] = pa.array(np.arange(number, number + count, dtype=np.int64))
                if "path" in self.columns:
                    columns["path"] = pa.repeat(pa.scalar(file.url, pa.large_string()), count)
                piece = Lines(lines.data[begin : line_ends[-1] + 1], lines.start + begin)
                if "text" in self.columns:
                    columns["text"] = self._text(file, piece, line_ends - begin)
                number += count
                yield Chunk(
                    {name: columns[name] for name in self.columns}, Lines.starts(line_ends - begin) + piece.start, count
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
        return {name: _TYPES[name] for name in self.columns}

    def select(self, columns: Sequence[str]) -> TextSource:
        """Return a source over the same lines with only ``columns``; it counts lines only for the column ``line``.

        Raises:
            PipelineError: a column does not exist.
        """
        for name in columns:
            if name not in _TYPES:
                raise missing_column(name, list(_TYPES), self.describe())
        return self.share_known(replace(self, columns=tuple(columns)))


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


def read_text(
    paths: Paths,
    *,
    errors: Literal["strict", "replace"] = "strict",
) -> TextSource:
    """Return the source that ``cedar.read_text`` uses.

    Args:
        paths: local paths, fsspec URLs, globs; ``.gz``, ``.bz2``, ``.zst`` and ``.xz`` are decompressed.
        errors: how to handle bytes that are not UTF-8: "strict" (SourceError with the byte offset) or "replace".

    Raises:
        PipelineError: ``paths`` is not a path or a list of paths, or ``errors`` is invalid.

    Examples:
        >>> from pathlib import Path
        >>> _ = Path("t.txt").write_text("one two")
        >>> source = read_text("t.txt").select(["line", "text"])
        >>> [chunk.columns["text"].to_pylist() for split in source.splits() for chunk in source.read(split)]
        [['one two']]
    """
    if errors not in ("strict", "replace"):
        raise PipelineError(f'read_text: errors is "strict" or "replace", not {errors!r}', site=user_site())
    return TextSource(as_paths(paths, "read_text"), errors=errors)
