"""Read CSV files; column types are inferred from the first 4 MiB of the first file that has rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc

from cedar.core.boundary import as_column, canonical_type
from cedar.core.columns import Index
from cedar.core.dtypes import type_from_dtype
from cedar.core.errors import PipelineError, RowError, RowRef, SourceError, missing_column, user_site
from cedar.datasets.base import Chunk, Split, once, selected
from cedar.datasets.csv_rows import read_header, row_blocks
from cedar.datasets.exact import Inexact, check_text, integer_type, rounded_rows
from cedar.datasets.files_io import File, actual_format, concurrently, open_file, open_native, reading
from cedar.datasets.filesource import FileSource, Paths, as_flag, as_paths
from cedar.datasets.split_table import SplitTable
from cedar.datasets.text import SPLIT_BYTES, Lines, blank_lines, line_number, line_splits, read_lines, whole_files

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
    dtypes: tuple[tuple[str, Any], ...] = ()
    columns: tuple[str, ...] | None = None
    split_bytes: int = SPLIT_BYTES
    reader: ClassVar[str] = "read_csv"
    selections_share: ClassVar[tuple[str, ...]] = ("_names", "_headers", "_stored")
    can_skip_parsing: ClassVar[bool] = True

    # ---- column names and types --------------------------------------------------------------------------------------

    @once
    def _names(self) -> tuple[str, ...]:
        """Return the names of all columns in the files."""
        if not self.dialect.header:
            return self.dialect.column_names or self._numbered_names()
        header = self._headers[0]
        names = self.dialect.column_names or header
        if len(names) != len(header):
            raise PipelineError(
                f"{self.describe()}: {len(names)} column_names for {len(header)} columns: {list(header)}"
            )
        return _check_unique(names, self.listing[0])

    @once
    def _headers(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return the header, which all files share, and for each file the byte offset at which the header ends."""
        headers = concurrently(self._header, self.listing.files)
        for file, (header, _) in zip(self.listing, headers, strict=True):
            if header != headers[0][0]:
                raise _other_header(self.listing[0], file, headers[0][0], header)
        return headers[0][0], tuple(end for _, end in headers)

    def _header(self, file: File) -> tuple[tuple[str, ...], int]:
        """Return the fields of a file's first row, and the byte offset at which the row ends."""
        with reading(file.url, "header"), open_file(file) as stream:
            return read_header(file, stream, self.dialect.delimiter, self.dialect.quoting)

    def _first_row_offset(self, ordinal: int) -> int:
        """Return the byte offset of a file's first data row."""
        return self._headers[1][ordinal] if self.dialect.header else 0

    def _numbered_names(self) -> tuple[str, ...]:
        first = next((file for file in self.listing if file.size != 0), self.listing[0])
        return tuple(f"column_{i + 1}" for i in range(len(self._header(first)[0])))

    @once
    def _stored(self) -> dict[str, pa.DataType]:
        """Return the types of all columns, as declared or inferred."""
        names = self._names
        declared = {name: type_from_dtype(kind) for name, kind in self.dtypes}
        for name, kind in declared.items():
            if name not in names:
                raise missing_column(name, list(names), f"{self.describe()}: dtypes")
            if not isinstance(kind, pa.DataType):
                raise PipelineError(f"{self.describe()}: a CSV column cannot be {kind}: dtypes[{name!r}]")
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
        with open_native(file) as stream:
            dialect = self.dialect
            yield from row_blocks(
                file, stream, self._first_row_offset(ordinal), dialect.delimiter, dialect.quoting, _BLOCK
            )

    def _parsed(self, rows: Any, convert: Any) -> Any:
        """Parse complete rows into a table."""
        names = list(self._names)
        read = pc.ReadOptions(use_threads=False, block_size=len(rows) + 1, column_names=names)
        return pc.read_csv(pa.BufferReader(pa.py_buffer(rows)), read, self.dialect.parse(len(names)), convert)

    def schema(self) -> dict[str, pa.DataType]:
        stored = selected(self._stored, self.columns, self.describe())
        types = {name: canonical_type(kind) for name, kind in stored.items()}
        return types | dict.fromkeys(types.keys() & self.unread, pa.null())

    def select(self, columns: Sequence[str]) -> CsvSource:
        """Return a source over the same files that reads only ``columns``; other fields are split but not converted."""
        return self.share_known(replace(self, columns=tuple(columns)))

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
        return [name for name, kind in self.schema().items() if _is_float(kind)]

    def _chunk(self, table: Any, offsets: Index) -> Chunk:
        names = list(self.schema())
        columns = {name: as_column(table.column(name)) for name in names if name not in self.unread}
        return Chunk(self.with_unread(columns, names, table.num_rows), offsets, table.num_rows)

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
                    offset = int(chunk.offsets[row])
                    place = f"row {offset} (counted from 0, without the header)"
                    raise RowError(
                        f"{file.url}, {place if unit == 'row' else f'line {line_number(file, offset) + 1}'}: {error}",
                        row=RowRef(0, ordinal, offset, url=file.url, unit=unit),
                        fix=f'set its type: dtypes={{{name!r}: "uint64"}}, "float64", a decimal type, or "string"',
                    ) from error

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
                f"{file.url}: its lines end with CR only",
                fix="rewrite them with LF, or leave out quoting=False",
            )
        lines = Lines(lines.data[header:], lines.start + header)
        ends = lines.ends()
        offsets = Lines.starts(ends) + lines.start
        if len(self._names) != 1:
            offsets = np.delete(offsets, blank_lines(lines, ends))
        if not len(offsets):
            return
        with self._errors(file, ordinal, offsets):
            table = self._parsed(lines.data, self._convert())
            if table.num_rows != len(offsets):
                raise ValueError(f"{table.num_rows} rows in {len(offsets)} lines from byte {lines.start}")
        chunk = self._chunk(table, offsets)
        strings = partial(self._parsed, lines.data, self._string_options(self._floats()))
        self._check_exact(chunk, strings, ordinal, file, "byte")
        yield chunk

    def _errors(self, file: File, ordinal: int, place: Index | int = 0) -> Any:
        return _CsvErrors(self, file, ordinal, place)


class _CsvErrors:
    """Convert the parser's errors into a RowError that names the row, and other errors into a SourceError.

    Args:
        source: the source being read.
        file: the file whose rows are parsed.
        ordinal: the file's index in the listing.
        place: the byte offset of each parsed row, or the index of the first parsed row in the file.
    """

    def __init__(self, source: CsvSource, file: File, ordinal: int, place: Index | int) -> None:
        self._source, self._file, self._ordinal, self._place = source, file, ordinal, place

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        match = _ROW.match(str(error)) if isinstance(error, pa.ArrowInvalid) else None
        if match:
            raise self._row_error(match) from error
        if isinstance(error, Exception):
            with reading(self._file.url):
                raise error

    def _row_error(self, match: re.Match[str]) -> RowError:
        number = int(match[2]) - 1
        if isinstance(self._place, int):
            row, unit = self._place + number, "row"
            where = f"{self._file.url}, row {row} (counted from 0, without the header)"
        else:
            row, unit = int(self._place[min(number, len(self._place) - 1)]), "byte"
            where = f"{self._file.url}, line {line_number(self._file, row) + 1}"
        text = match[3].replace("CSV conversion error to", "cannot be")
        text = f"{text[:200]}..." if len(text) > 200 else text
        fix = "correct the row; if a value holds the delimiter, quote it"
        if not self._source.dialect.quoting:
            fix = "correct the row; if a value that holds the delimiter is quoted, leave out quoting=False"
        if match[1] is not None:
            name = self._source._names[int(match[1])]
            text = f"column {name!r} {text}"
            fix = (
                "convert the file to utf-8"
                if "UTF8" in text
                else f'correct the value, or give the column a wider type: dtypes={{{name!r}: "string"}}'
            )
        text, fix = actual_format(self._file) or (text, fix)
        return RowError(f"{where}: {text}", row=RowRef(0, self._ordinal, row, url=self._file.url, unit=unit), fix=fix)


def _is_float(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind))


def _column_type(kind: pa.DataType) -> pa.DataType:
    """Return string for inferred text, date, time and null types, else ``kind``; dates and times must be declared."""
    if pa.types.is_null(kind) or pa.types.is_temporal(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind):
        return pa.large_string()
    return kind


def _check_unique(names: tuple[str, ...], file: File) -> tuple[str, ...]:
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise SourceError(
            f"{file.url}: two columns are named {twice!r}", fix="give other names with column_names=[...]"
        )
    return names


def _other_header(first: File, other: File, names: tuple[str, ...], others: tuple[str, ...]) -> SourceError:
    missing, extra = [n for n in names if n not in others], [n for n in others if n not in names]
    how = f"the second has no {missing}" if missing else f"the second also has {extra}" if extra else "another order"
    return SourceError(
        f"{first.url} and {other.url} have different headers: {how}",
        fix="read them separately and combine them with cedar.concat",
    )


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
    """Return the source that ``cedar.read_csv`` uses.

    Args:
        paths: local paths, fsspec URLs, globs; compressed files are decompressed.
        delimiter: one character.
        header: whether the first row holds the names; all files must have the same header.
        column_names: names that replace the header's; without a header, the default is "column_1", "column_2", ...
        dtypes: types of columns. Other columns are inferred from the first 4 MiB of the first file that has rows:
            integer, float or boolean if all values there match, otherwise string. A later value that does not fit is an
            error.
        null_values: strings that are read as null, by default the empty field; quoted fields are never null.
        quoting: False if quotes have no special meaning; cedar then splits files and reads the parts in parallel.
        columns: the columns to read.

    Raises:
        PipelineError: an argument is invalid.

    Examples:
        >>> from pathlib import Path
        >>> _ = Path("t.csv").write_text("x,y")
        >>> read_csv("t.csv").schema()
        {'x': DataType(large_string), 'y': DataType(large_string)}
    """
    if len(delimiter) != 1:
        raise PipelineError(f"read_csv: delimiter must be one character, not {delimiter!r}", site=user_site())
    for option, names in (("column_names", column_names), ("columns", columns)):
        if names is not None and (isinstance(names, str) or len(set(names)) < len(names)):
            raise PipelineError(f"read_csv: {option}={names!r} is not a list of different names", site=user_site())
    if isinstance(quoting, int) and not isinstance(quoting, bool):  # csv.QUOTE_MINIMAL is 0, and QUOTE_NONE is 3
        raise PipelineError(
            f"read_csv(quoting={quoting!r}): True or False is expected, not a constant of the csv module",
            site=user_site(),
            fix="use quoting=False instead of csv.QUOTE_NONE, and omit quoting= for other modes",
        )
    nulls = ("",) if null_values is None else (null_values,) if isinstance(null_values, str) else tuple(null_values)
    names = None if column_names is None else tuple(column_names)
    flags = as_flag(header, "header", "read_csv"), as_flag(quoting, "quoting", "read_csv")
    dialect = Dialect(delimiter, flags[0], names, nulls, flags[1])
    chosen = None if columns is None else tuple(columns)
    return CsvSource(as_paths(paths, "read_csv"), dialect, tuple((dtypes or {}).items()), chosen)
