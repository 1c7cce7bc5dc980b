"""Read CSV files; column types are inferred from the first 4 MiB of the first file that has rows.

Arrow's parser does not report where rows end, so cedar splits a file into complete rows by the same rules.
"""

from __future__ import annotations

import csv
import io
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc

from cedar.core.boundary import as_column, canonical_type
from cedar.core.columns import Index
from cedar.core.errors import PipelineError, RowError, RowRef, SourceError, invalid_call, require_columns
from cedar.core.limits import too_much
from cedar.datasets.base import Chunk, Split, once, selected
from cedar.datasets.exact import Inexact, check_text, integer_type, rounded_rows
from cedar.datasets.files_io import (
    Bytes,
    File,
    actual_format,
    check_unchanged,
    concurrently,
    open_file,
    open_native,
    reading,
)
from cedar.datasets.filesource import FileSource, Paths, as_flag, as_names, as_paths, as_types
from cedar.datasets.split_table import SplitTable
from cedar.datasets.text import SPLIT_BYTES, Lines, blank_lines, line_number, line_splits, read_lines, whole_files

_QUOTE = ord('"')

_BLOCK = 4 << 20  # bytes parsed at a time; types are inferred from the first block
_ROW = re.compile(r"(?:In CSV column #(\d+): )?(?:CSV parse error: )?Row #(\d+): (.*)", re.DOTALL)


@dataclass(frozen=True)
class Dialect:
    """The format options of CSV files, such as the delimiter."""

    delimiter: str = ","
    header: bool = True
    column_names: tuple[str, ...] | None = None
    null_values: tuple[str, ...] = ("",)
    quoting: bool = True

    def parse(self, columns: int) -> Any:
        return pc.ParseOptions(
            delimiter=self.delimiter,
            quote_char='"' if self.quoting else False,
            newlines_in_values=self.quoting,
            ignore_empty_lines=columns != 1,  # in a file with one column, an empty line is a null
        )

    def convert(self, **options: Any) -> Any:
        return pc.ConvertOptions(
            null_values=list(self.null_values), strings_can_be_null=True, quoted_strings_can_be_null=False, **options
        )


@dataclass(frozen=True, repr=False)
class CsvSource(FileSource):
    """CSV files with the same header. With quoting, each file is one streaming split, as values may hold newlines."""

    dialect: Dialect = Dialect()
    dtypes: tuple[tuple[str, pa.DataType], ...] = ()
    split_bytes: int = SPLIT_BYTES
    reader: ClassVar[str] = "read_csv"
    selections_share: ClassVar[tuple[str, ...]] = ("_names", "_headers", "_stored")
    can_skip_parsing: ClassVar[bool] = True

    # ---- column names and types --------------------------------------------------------------------------------------

    @once
    def _names(self) -> tuple[str, ...]:
        """Return the names of all columns in the files."""
        if not self.dialect.header:
            first = next((file for file in self.listing if file.size != 0), self.listing[0])
            return self.dialect.column_names or tuple(f"column_{i + 1}" for i in range(len(self._header(first)[0])))
        header = self._headers[0]
        names = self.dialect.column_names or header
        if len(names) != len(header):
            raise PipelineError(
                f"{self.describe()}: {len(names)} column_names for {len(header)} columns: {list(header)}"
            )
        if (twice := next((n for n in names if names.count(n) > 1), None)) is not None:
            raise SourceError(
                f"{self.listing[0].url}: two columns are named {twice!r}",
                fix="give other names with column_names=[...]",
            )
        return names

    @once
    def _headers(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return the header, which all files share, and for each file the byte offset at which the header ends."""
        headers = concurrently(self._header, self.listing.files)
        first = headers[0][0]
        for file, (header, _) in zip(self.listing, headers, strict=True):
            if header != first:
                missing, extra = [n for n in first if n not in header], [n for n in header if n not in first]
                how = f"the second has no {missing}" if missing else f"the second also has {extra}"
                raise SourceError(
                    f"{self.listing[0].url} and {file.url} have different headers: "
                    f"{how if missing or extra else 'another order'}",
                    fix="read them separately, add or drop the columns that differ (with_columns, select), and use "
                    "cedar.concat",
                )
        return first, tuple(end for _, end in headers)

    def _header(self, file: File) -> tuple[tuple[str, ...], int]:
        """Return the fields of a file's first row that is not blank, and the byte offset at which the row ends."""
        quoting = self.dialect.quoting
        line_bytes_read: list[int] = []
        with (
            reading(file.url, "header"),
            open_file(file) as stream,
            io.TextIOWrapper(stream, encoding="latin-1", newline="") as text,  # decodes each byte to one character
        ):
            lines = _lines(file, text, line_bytes_read)
            rows = csv.reader(
                lines,
                delimiter=self.dialect.delimiter,
                quoting=csv.QUOTE_MINIMAL if quoting else csv.QUOTE_NONE,
                strict=quoting,
            )
            first = next((row for row in rows if row), None)
            if first is None:
                raise SourceError(f"{file.url}: the file is empty and has no header", fix="leave it out")
        return tuple(first), sum(line_bytes_read)

    def _first_row_offset(self, ordinal: int) -> int:
        """Return the byte offset of a file's first data row."""
        return self._headers[1][ordinal] if self.dialect.header else 0

    @once
    def _stored(self) -> dict[str, pa.DataType]:
        """Return the types of all columns, as declared or inferred."""
        names = self._names
        declared = dict(self.dtypes)
        require_columns(declared, names, f"{self.describe()}: dtypes")
        types = {name: pa.null() for name in names}
        for ordinal, file in enumerate(self.listing):
            inferred = self._infer(ordinal, file, declared)
            if inferred is not None:
                types = inferred
                break
        return {name: declared.get(name, _column_type(kind)) for name, kind in types.items()}

    def _infer(self, ordinal: int, file: File, declared: dict[str, pa.DataType]) -> dict[str, pa.DataType] | None:
        """Infer types from the first block of a file that has rows; return None if the file has no rows."""
        if file.size == 0:
            return None
        with self._errors(file, ordinal):
            convert = self.dialect.convert(
                column_types=dict.fromkeys(declared, pa.binary())
            )  # read as bytes here, since ``read`` parses these columns with their declared types
            parsed = ((block, self._parsed(block, convert)) for block in self._row_blocks(ordinal, file))
            block, table = next(((block, table) for block, table in parsed if table.num_rows), (b"", None))
        if table is None:
            return None
        types = dict(zip(table.schema.names, table.schema.types, strict=True))
        floats = {n: as_column(table.column(n)) for n, k in types.items() if n not in declared and _is_float(k)}
        large = [name for name, column in floats.items() if len(rounded_rows({name: column}))]
        if large:  # the parser returns integers beyond int64 as floats
            with self._errors(file, ordinal):
                strings = self._parsed(block, self._string_options(large))
            types |= {n: kind for n in large for kind in [integer_type(strings.column(n))] if kind is not None}
        return types

    def _row_blocks(self, ordinal: int, file: File) -> Iterator[bytes]:
        """Yield blocks of complete rows, about 4 MiB each."""
        with open_native(file) as stream:
            remaining = begin = self._first_row_offset(ordinal)
            while remaining and (skipped := stream.read(min(remaining, _BLOCK))):
                remaining -= len(skipped)
            rest = b"" if begin else stream.read(len(BOM_UTF8)).removeprefix(BOM_UTF8)
            while block := stream.read(_BLOCK):
                data = rest + block
                cut, _ = _last_end(data, self.dialect)
                if cut:
                    yield _protect_bom(data[:cut])
                rest = data[cut:]
                if len(rest) > file.limits.line_bytes:
                    row = f"{file.url}: a row (unless a quote is never closed)"
                    raise too_much(row, "is longer than", "line_bytes", file.limits)
            check_unchanged(file)
        if _last_end(rest, self.dialect)[1]:
            raise SourceError(
                f"{file.url}: a quote is opened and never closed: the last value continues to the end of the file",
                fix="correct the file, or read_csv(..., quoting=False) if quotes have no special meaning",
            )
        if rest:
            yield _protect_bom(rest)

    def _parsed(self, rows: Any, convert: Any) -> Any:
        """Parse complete rows into a table."""
        names = list(self._names)
        read = pc.ReadOptions(use_threads=False, block_size=len(rows) + 1, column_names=names)
        return pc.read_csv(pa.BufferReader(pa.py_buffer(rows)), read, self.dialect.parse(len(names)), convert)

    def schema(self) -> dict[str, pa.DataType]:
        stored = selected(self._stored, self.columns, self.describe())
        return {name: canonical_type(kind) for name, kind in stored.items()}

    # ---- rows --------------------------------------------------------------------------------------------------------

    def sound_splits(self) -> SplitTable:
        assert self._names  # compares the headers of all files before the first row is read
        if not self.dialect.quoting:
            return line_splits(self.listing, self.split_bytes)
        return whole_files(self.listing)

    def read(self, split: Split) -> Iterator[Chunk]:
        file = self.listing[split.file]
        if file.size == 0:
            return
        if split.streaming:
            yield from self._stream(split.file, file)
            return
        for lines in read_lines(file, split):
            yield from self._range(split.file, file, lines)

    def _convert(self) -> Any:
        wanted = [name for name in self.schema() if name not in self.unread]
        if not wanted:  # convert one column to count the rows, as bytes since this never fails
            return self.dialect.convert(
                column_types=dict.fromkeys(self._stored, pa.binary()), include_columns=list(self._stored)[:1]
            )
        return self.dialect.convert(column_types=self._stored, include_columns=wanted)

    def _string_options(self, names: Sequence[str]) -> Any:
        """Return conversion options that keep the values of columns as the strings in the file."""
        return self.dialect.convert(column_types=dict.fromkeys(names, pa.string()), include_columns=list(names))

    def _floats(self) -> list[str]:
        return [name for name, kind in self.schema().items() if _is_float(kind) and name not in self.unread]

    def _chunk(self, table: Any, offsets: Index) -> Chunk:
        columns = {name: as_column(table.column(name)) for name in self.schema() if name not in self.unread}
        return Chunk(self.with_unread(columns, table.num_rows), offsets, table.num_rows)

    def _check_exact(self, chunk: Chunk, strings: Callable[[], Any], ordinal: int, file: File, unit: str) -> None:
        """Raise RowError if a float column would round a number; ``strings`` returns the float columns as strings."""
        suspect = rounded_rows({name: chunk.columns[name] for name in self._floats()})
        if not len(suspect):
            return
        written = strings()
        for row in suspect.tolist():
            for name in self._floats():
                try:
                    check_text(name, written.column(name)[row].as_py(), self.schema()[name])
                except Inexact as error:
                    assert chunk.offsets is not None
                    fix = f'set its type: dtypes={{{name!r}: "uint64"}}, "float64", a decimal type, or "string"'
                    raise _error_at(file, ordinal, int(chunk.offsets[row]), unit, str(error), fix) from error

    def _stream(self, ordinal: int, file: File) -> Iterator[Chunk]:
        rows = 0
        blocks = self._row_blocks(ordinal, file)
        while True:
            with self._errors(file, ordinal, rows):
                block = next(blocks, None)
                if block is None:
                    return
                table = self._parsed(block, self._convert())
            if not table.num_rows:
                continue
            chunk = self._chunk(table, np.arange(rows, rows + table.num_rows, dtype=np.int64))
            strings = partial(self._parsed, block, self._string_options(self._floats()))
            self._check_exact(chunk, strings, ordinal, file, "row")
            yield chunk
            rows += table.num_rows

    def _range(self, ordinal: int, file: File, lines: Lines) -> Iterator[Chunk]:
        header = min(max(0, self._first_row_offset(ordinal) - lines.start), len(lines.data))
        if 0 < header < len(lines.data) and lines.data[header - 1] == ord("\r"):
            raise SourceError(
                f"{file.url}: its lines end with CR only", fix="rewrite them with LF, or leave out quoting=False"
            )
        lines = Lines(lines.data[header:], lines.start + header)
        ends = lines.ends()
        offsets = Lines.starts(ends) + lines.start
        if len(self._names) != 1:
            offsets = np.delete(offsets, blank_lines(lines, ends))
        if not len(offsets):
            return
        rows = _protect_bom(lines.data) if lines.start else lines.data
        with self._errors(file, ordinal, offsets):
            table = self._parsed(rows, self._convert())
            if table.num_rows != len(offsets):
                raise ValueError(f"{table.num_rows} rows in {len(offsets)} lines from byte {lines.start}")
        chunk = self._chunk(table, offsets)
        strings = partial(self._parsed, rows, self._string_options(self._floats()))
        self._check_exact(chunk, strings, ordinal, file, "byte")
        yield chunk

    @contextmanager
    def _errors(self, file: File, ordinal: int, place: Index | int = 0) -> Iterator[None]:
        """Convert the parser's errors into a RowError that names the row, and other errors into a SourceError.

        Args:
            file: the file whose rows are parsed.
            ordinal: the file's index in the listing.
            place: the byte offset of each parsed row, or the index of the first parsed row in the file.
        """
        try:
            yield
        except Exception as error:
            match = _ROW.match(str(error)) if isinstance(error, pa.ArrowInvalid) else None
            if match:
                raise self._row_error(match, file, ordinal, place) from error
            with reading(file.url):
                raise

    def _row_error(self, match: re.Match[str], file: File, ordinal: int, place: Index | int) -> RowError:
        number = int(match[2]) - 1
        text = match[3].replace("CSV conversion error to", "cannot be")
        text = f"{text[:200]}..." if len(text) > 200 else text
        fix = "correct the row; if a value holds the delimiter, quote it"
        if not self.dialect.quoting:
            fix = "correct the row; if a value that holds the delimiter is quoted, leave out quoting=False"
        if match[1] is not None:
            name = self._names[int(match[1])]
            text = f"column {name!r} {text}"
            fix = (
                "convert the file to utf-8"
                if "UTF8" in text
                else f'correct the value, or give the column a wider type: dtypes={{{name!r}: "string"}}'
            )
        text, fix = actual_format(file) or (text, fix)
        if isinstance(place, int):
            return _error_at(file, ordinal, place + number, "row", text, fix)
        return _error_at(file, ordinal, int(place[min(number, len(place) - 1)]), "byte", text, fix)


def _error_at(file: File, ordinal: int, offset: int, unit: str, text: str, fix: str) -> RowError:
    """Return the error for a row; ``offset`` is its number in the file or, with unit "byte", where it begins."""
    where = f"row {offset} (counted from 0, without the header)"
    if unit == "byte":
        where = f"line {line_number(file, offset) + 1}"
    return RowError(f"{file.url}, {where}: {text}", row=RowRef(0, ordinal, offset, url=file.url, unit=unit), fix=fix)


def _is_float(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind))


def _column_type(kind: pa.DataType) -> pa.DataType:
    """Return string for inferred text, date, time and null types, else ``kind``; dates and times must be declared."""
    if pa.types.is_null(kind) or pa.types.is_temporal(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind):
        return pa.large_string()
    return kind


def read_csv(
    paths: Paths,
    *,
    delimiter: str = ",",
    header: bool = True,
    column_names: Sequence[str] | None = None,
    dtypes: Mapping[str, Any] | None = None,
    null_values: Sequence[str] | None = None,
    quoting: bool = True,
    columns: Sequence[str] | None = None,
) -> CsvSource:
    """Return the source that ``cedar.read_csv`` uses."""
    if not isinstance(delimiter, str) or len(delimiter) != 1 or not delimiter.isascii() or delimiter in "\r\n":
        problem = f"read_csv: delimiter must be one character of ASCII, not {delimiter!r}"
        raise invalid_call(problem, fix='give a character such as "," or "\\t"; convert files with other delimiters')
    if isinstance(column_names, str):
        raise invalid_call(f"read_csv: column_names={column_names!r} is not a list of different names")
    if isinstance(quoting, int) and not isinstance(quoting, bool):  # csv.QUOTE_MINIMAL is 0, and QUOTE_NONE is 3
        raise invalid_call(
            f"read_csv(quoting={quoting!r}): True or False is expected, not a constant of the csv module",
            fix="use quoting=False instead of csv.QUOTE_NONE, and omit quoting= for other modes",
        )
    nulls = ("", *((null_values,) if isinstance(null_values, str) else null_values or ()))
    names = as_names(column_names, "column_names", "read_csv")
    flags = as_flag(header, "header", "read_csv"), as_flag(quoting, "quoting", "read_csv")
    dialect = Dialect(delimiter, flags[0], names, nulls, flags[1])
    chosen, types = as_names(columns, "columns", "read_csv"), as_types(dtypes, "dtypes", "read_csv")
    return CsvSource(as_paths(paths, "read_csv"), dialect, types, columns=chosen)


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


def _protect_bom(rows: Any) -> Any:
    """If rows begin with a byte order mark, add another one, since the parser drops the first."""
    return BOM_UTF8 + bytes(rows) if bytes(rows[: len(BOM_UTF8)]) == BOM_UTF8 else rows


def _last_end(data: bytes, dialect: Dialect) -> tuple[int, bool]:
    """Return the end of the last complete row (0 if there is none), and whether ``data`` ends inside a quoted value."""
    opens, closes = _quoted(data, dialect.delimiter) if dialect.quoting else ([], [])
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
