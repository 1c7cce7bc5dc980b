"""Split a CSV file into complete rows by the rules of Arrow's parser, which does not report where rows end."""

from __future__ import annotations

import csv
import io
from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import Any

import numpy as np

from cedar.core.errors import SourceError
from cedar.core.limits import too_much
from cedar.datasets.files_io import Bytes, File, actual_format, check_unchanged

_QUOTE = ord('"')


def read_header(file: File, stream: Any, delimiter: str, quoting: bool) -> tuple[tuple[str, ...], int]:
    """Return the fields of the first row that is not blank, and the byte offset at which the row ends."""
    line_bytes_read: list[int] = []
    with io.TextIOWrapper(stream, encoding="latin-1", newline="") as text:  # latin-1 decodes each byte to one character
        lines = _lines(file, text, line_bytes_read)
        if quoting:
            rows = csv.reader(lines, delimiter=delimiter, strict=True)
        else:
            rows = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE)
        first = next((row for row in rows if row), None)
    if first is None:
        raise SourceError(f"{file.url}: the file is empty and has no header", fix="leave it out")
    return tuple(first), sum(line_bytes_read)


def _lines(file: File, text: Any, line_bytes_read: list[int]) -> Iterator[str]:
    """Yield decoded lines and append the bytes of each to ``line_bytes_read``; reject lines over the limit."""
    limit = file.limits.line_bytes
    while line := text.readline(limit + 1):
        if len(line) > limit:
            raise too_much(f"{file.url}: the header", "is longer than", "line_bytes", file.limits)
        try:
            decoded = line.encode("latin-1").decode("utf-8" if line_bytes_read else "utf-8-sig")
            if "\0" in decoded:
                raise ValueError("it has a null byte")
        except ValueError as error:
            problem, fix = actual_format(file) or (f"the header is not UTF-8: {error}", "convert the file to UTF-8")
            raise SourceError(f"{file.url}: {problem}", fix=fix) from error
        line_bytes_read.append(len(line))
        yield decoded


def row_blocks(file: File, stream: Any, begin: int, delimiter: str, quoting: bool, size: int) -> Iterator[bytes]:
    """Yield blocks of complete rows, about ``size`` bytes each.

    Args:
        file: the file, for error messages.
        stream: the file's decompressed bytes.
        begin: byte offset of the first row, after the header.
        delimiter: the character between fields.
        quoting: whether a quote at the beginning of a field is special.
        size: bytes per block.

    Raises:
        SourceError: a row is longer than the limit, a quote is never closed, or the file changed during reading.
    """
    remaining = begin
    while remaining and (skipped := stream.read(min(remaining, size))):
        remaining -= len(skipped)
    rest = b"" if begin else stream.read(len(BOM_UTF8)).removeprefix(BOM_UTF8)
    while block := stream.read(size):
        data = rest + block
        cut, _ = _last_end(data, delimiter, quoting)
        if cut:
            yield _protect_bom(data[:cut])
        rest = data[cut:]
        if len(rest) > file.limits.line_bytes:
            raise too_much(
                f"{file.url}: a row (unless a quote is never closed)", "is longer than", "line_bytes", file.limits
            )
    check_unchanged(file)
    if _last_end(rest, delimiter, quoting)[1]:
        raise SourceError(
            f"{file.url}: a quote is opened and never closed: the last value continues to the end of the file",
            fix="correct the file, or read_csv(..., quoting=False) if quotes have no special meaning",
        )
    if rest:
        yield _protect_bom(rest)


def _protect_bom(rows: bytes) -> bytes:
    """If rows begin with a byte order mark, add another one, since the parser drops the first."""
    return BOM_UTF8 + rows if rows.startswith(BOM_UTF8) else rows


def _last_end(data: bytes, delimiter: str, quoting: bool) -> tuple[int, bool]:
    """Return the end of the last complete row (0 if there is none), and whether ``data`` ends inside a quoted value."""
    opens, closes = _quoted(data, delimiter) if quoting else ([], [])
    stop = len(data)
    for i in reversed(range(len(opens))):
        if i < len(closes) and (end := _line_end(data, int(closes[i]), stop)):
            return end, len(opens) > len(closes)
        stop = int(opens[i])
    return _line_end(data, 0, stop), len(opens) > len(closes)


def _line_end(data: bytes, start: int, stop: int) -> int:
    """Return the end of the last line in a range; ignore a CR at the end of ``data``, as an LF may follow."""
    return max(data.rfind(b"\n", start, stop), data.rfind(b"\r", start, min(stop, len(data) - 1))) + 1


def _quoted(data: bytes, delimiter: str) -> tuple[Any, Any]:
    """Return the positions of opening and closing quotes; the last closing quote may be missing.

    A value with doubled quotes may count as several. Quotes inside unquoted fields have no meaning, as in ``5" pipe``.
    """
    characters: Bytes = np.frombuffer(data, dtype=np.uint8)
    quotes = np.flatnonzero(characters == _QUOTE)
    begins = np.zeros(256, dtype=bool)  # whether a field begins after a byte, indexed by that byte
    begins[[*delimiter.encode(), *b"\r\n"]] = True
    opens = quotes[::2]
    if (begins[characters[opens - 1]] | (characters[opens - 1] == _QUOTE) | (opens == 0)).all():
        return opens, quotes[1::2]
    positions, starts, ends = quotes.tolist(), [], []
    is_begin = (begins[characters[quotes - 1]] | (quotes == 0)).tolist()
    i = 0
    while i < len(positions):
        if is_begin[i]:
            starts.append(positions[i])
            i += 1
            while i + 1 < len(positions) and positions[i + 1] == positions[i] + 1:  # a doubled quote is one quote
                i += 2
            ends += positions[i : i + 1]
        i += 1
    return starts, ends
