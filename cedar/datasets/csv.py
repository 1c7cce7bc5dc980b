"""CSV: typed columns, whose types the first block of the first file fixes."""

from __future__ import annotations

import csv
import io
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
from cedar.core.errors import PipelineError, RowError, RowRef, SourceError, missing_column, user_site
from cedar.core.limits import too_much
from cedar.datasets.base import Chunk, Split, selected
from cedar.datasets.exact import Inexact, check_text, rounded_rows, whole_type
from cedar.datasets.files_io import compression_of, open_file, open_native
from cedar.datasets.filesource import FileSource
from cedar.datasets.lines import SPLIT_BYTES, Lines, blank_lines, line_number, line_splits, read_lines, whole_files
from cedar.datasets.listing import File, Paths, as_flag, as_paths, concurrently, reading
from cedar.datasets.once import once
from cedar.datasets.split_table import SplitTable
from cedar.operators.infer import type_from_dtype

_BLOCK = 4 << 20  # what is parsed at a time; also what the types are inferred from
_ROW = re.compile(r"(?:In CSV column #(\d+): )?(?:CSV parse error: )?Row #(\d+): (.*)", re.DOTALL)


@dataclass(frozen=True)
class Dialect:
    """How the files are written."""

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
            ignore_empty_lines=columns != 1,  # the only column's null is an empty line
        )

    def convert(self, **options: Any) -> Any:
        return pc.ConvertOptions(
            null_values=list(self.null_values), strings_can_be_null=True, quoted_strings_can_be_null=False, **options
        )


@dataclass(frozen=True, repr=False)
class CsvSource(FileSource):
    """CSV files of one header. With quoting a file is one streaming split, since a quoted value may hold newlines."""

    dialect: Dialect = Dialect()
    dtypes: tuple[tuple[str, Any], ...] = ()
    columns: tuple[str, ...] | None = None
    split_bytes: int = SPLIT_BYTES
    reader: ClassVar[str] = "read_csv"

    # ---- names and types: from the first blocks of the files ---------------------------------------------------------

    @once
    def _names(self) -> tuple[str, ...]:
        """All columns of the files."""
        if not self.dialect.header:
            return self.dialect.column_names or self._numbered()
        headers = concurrently(self._header, self.listing.files)
        for file, header in zip(self.listing, headers, strict=True):
            if header != headers[0]:
                raise _other_header(self.listing[0], file, headers[0], header)
        names = self.dialect.column_names or headers[0]
        if len(names) != len(headers[0]):
            raise PipelineError(
                f"{self.describe()}: {len(names)} column_names for {len(headers[0])} columns: {list(headers[0])}"
            )
        return _different(names, self.listing[0])

    def _header(self, file: File) -> tuple[str, ...]:
        """The fields of a file's first row."""
        with (
            reading(file.url, "header"),
            open_file(file) as stream,
            io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline="") as text,
        ):
            delimiter, lines = self.dialect.delimiter, _bounded(file, text)
            if self.dialect.quoting:
                rows = csv.reader(lines, delimiter=delimiter, strict=True)
            else:
                rows = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE)
            first = next((row for row in rows if row), None)
        if first is None:
            raise SourceError(f"{file.url}: the file is empty, not even a header is there", fix="leave it out")
        return tuple(first)

    def _numbered(self) -> tuple[str, ...]:
        first = next((file for file in self.listing if file.size != 0), self.listing[0])
        return tuple(f"column_{i + 1}" for i in range(len(self._header(first))))

    @once
    def _stored(self) -> dict[str, pa.DataType]:
        """The types of all columns as they are parsed."""
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
        return {name: declared.get(name, _settled(kind)) for name, kind in types.items()}

    def _infer(self, ordinal: int, file: File, declared: dict[str, pa.DataType]) -> dict[str, pa.DataType] | None:
        """The types that a file's first block shows; None where it has no rows."""
        if file.size == 0:
            return None
        with self._errors(file, ordinal), open_native(file) as stream:
            opened = self._open(file, stream, self.dialect.convert(column_types=declared))
            batch = None if opened is None else _next(opened)
            if batch is None:
                return None
            types = dict(zip(opened.schema.names, opened.schema.types, strict=True))
        floats = {n: as_column(batch.column(n)) for n, k in types.items() if n not in declared and _is_float(k)}
        large = [name for name, column in floats.items() if len(rounded_rows({name: column}))]
        if large:  # whole numbers beyond int64, which the parser takes for floats
            with self._errors(file, ordinal), open_native(file) as stream:
                texts = _next(self._open(file, stream, self._texts(large)))
            types |= {n: kind for n in large for kind in [whole_type(texts.column(n))] if kind is not None}
        return types

    def _open(self, file: File, stream: Any, convert: Any) -> Any:
        read = pc.ReadOptions(
            use_threads=False,
            block_size=_BLOCK,
            column_names=list(self._names),
            skip_rows_after_names=1 if self.dialect.header else 0,
        )
        try:
            return pc.open_csv(stream, read, self.dialect.parse(len(self._names)), convert)
        except pa.ArrowInvalid as error:
            # Nothing after the header; "straddling" is what the parser says where the header has no newline either.
            if str(error).startswith(("Empty CSV", "straddling")) and _is_small(file):
                return None
            raise

    def schema(self) -> dict[str, pa.DataType]:
        stored = selected(self._stored, self.columns, self.describe())
        return {name: canonical_type(kind) for name, kind in stored.items()}

    def select(self, columns: Sequence[str]) -> CsvSource:
        """The same files, fewer columns; the others are split off, not converted."""
        other = self.keep(replace(self, columns=tuple(columns)))
        other.__dict__.update({k: v for k, v in self.__dict__.items() if k in ("_names", "_stored")})
        return other

    # ---- rows --------------------------------------------------------------------------------------------------------

    def splits(self) -> SplitTable:
        assert self._names  # the headers of all files are compared before the first row
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
        wanted = list(self.schema())
        return self.dialect.convert(column_types=self._stored, include_columns=wanted or list(self._stored)[:1])

    def _texts(self, names: Sequence[str]) -> Any:
        """How some columns are read as they are written."""
        return self.dialect.convert(column_types=dict.fromkeys(names, pa.string()), include_columns=list(names))

    def _floats(self) -> list[str]:
        return [name for name, kind in self.schema().items() if _is_float(kind)]

    def _chunk(self, table: Any, offsets: Index) -> Chunk:
        columns = {name: as_column(table.column(name)) for name in self.schema()}
        return Chunk(columns, offsets, table.num_rows)

    def _check_exact(self, chunk: Chunk, texts: Callable[[], Any], ordinal: int, file: File, unit: str) -> None:
        """Raises RowError for a whole number that its column rounds; ``texts`` are of the columns of floats."""
        suspect = rounded_rows({name: chunk.columns[name] for name in self._floats()})
        if not len(suspect):
            return
        written = texts()
        for row in suspect.tolist():
            for name in self._floats():
                try:
                    check_text(name, written.column(name)[row].as_py(), self.schema()[name])
                except Inexact as error:
                    assert chunk.offsets is not None
                    at = int(chunk.offsets[row])
                    place = f"row {at} (counted from 0, without the header)"
                    raise RowError(
                        f"{file.url}, {place if unit == 'row' else f'line {line_number(file, at) + 1}'}: {error}",
                        row=RowRef(0, ordinal, at, url=file.url, unit=unit),
                        fix=f'say what it is: dtypes={{{name!r}: "uint64"}}, a decimal type, or "string"',
                    ) from error

    def _stream(self, ordinal: int, file: File) -> Iterator[Chunk]:
        rows = number = 0
        batch = last = None
        written = _WrittenStream(self, file)
        with reading(file.url):
            stream = open_native(file)
        with stream:
            with self._errors(file, ordinal):
                opened = self._open(file, stream, self._convert())
            while opened is not None:
                last = batch
                with self._errors(file, ordinal):
                    batch = _next(opened)
                if batch is None:
                    break
                chunk = self._chunk(batch, np.arange(rows, rows + batch.num_rows, dtype=np.int64))
                self._check_exact(chunk, partial(written.batch, number), ordinal, file, "row")
                yield chunk
                rows, number = rows + batch.num_rows, number + 1
        if last is not None:
            _refuse_open_quote(file, last)

    def _range(self, ordinal: int, file: File, lines: Lines) -> Iterator[Chunk]:
        ends = lines.ends()
        if lines.start == 0 and self.dialect.header:
            cut = int(ends[0]) + 1
            lines, ends = Lines(lines.data[cut:], cut), ends[1:] - cut
        offsets = Lines.starts(ends) + lines.start
        if len(self._names) != 1:
            offsets = np.delete(offsets, blank_lines(lines, ends))
        if not len(offsets):
            return
        read = pc.ReadOptions(use_threads=False, block_size=len(lines.data) + 1, column_names=list(self._names))
        with self._errors(file, ordinal, offsets):

            def parsed(convert: Any) -> Any:
                source = pa.BufferReader(pa.py_buffer(lines.data))
                return pc.read_csv(source, read, self.dialect.parse(len(self._names)), convert)

            table = parsed(self._convert())
            if table.num_rows != len(offsets):
                raise ValueError(f"{table.num_rows} rows in {len(offsets)} lines from byte {lines.start}")
        chunk = self._chunk(table, offsets)
        self._check_exact(chunk, lambda: parsed(self._texts(self._floats())), ordinal, file, "byte")
        yield chunk

    def _errors(self, file: File, ordinal: int, offsets: Index | None = None) -> Any:
        return _CsvErrors(self, file, ordinal, offsets)


class _WrittenStream:
    """The batches of a stream as they are written, read once more beside it where one of them is asked for."""

    def __init__(self, source: CsvSource, file: File) -> None:
        self._source, self._file, self._next = source, file, 0
        self._batches: Iterator[Any] | None = None

    def batch(self, number: int) -> Any:
        """Batch ``number``; of those before the last one asked for, none can be had any more."""
        if self._batches is None:
            self._batches = self._read()
        batch = None
        while self._next <= number:
            batch = next(self._batches)
            self._next += 1
        return batch

    def _read(self) -> Iterator[Any]:
        with open_native(self._file) as stream:
            opened = self._source._open(self._file, stream, self._source._texts(self._source._floats()))
            while (batch := _next(opened)) is not None:
                yield batch


class _CsvErrors:
    """Turns the parser's errors into a RowError that names the row, others into a SourceError."""

    def __init__(self, source: CsvSource, file: File, ordinal: int, offsets: Index | None) -> None:
        self._source, self._file, self._ordinal, self._offsets = source, file, ordinal, offsets

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
        if self._offsets is None:
            row, unit = number - (1 if self._source.dialect.header else 0), "row"
            where = f"{self._file.url}, row {row} (counted from 0, without the header)"
        else:
            row, unit = int(self._offsets[min(number, len(self._offsets) - 1)]), "byte"
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
        return RowError(f"{where}: {text}", row=RowRef(0, self._ordinal, row, url=self._file.url, unit=unit), fix=fix)


def _bounded(file: File, text: Any) -> Iterator[str]:
    """Its lines, none of them longer than the limit."""
    most = file.limits.line_bytes
    while line := text.readline(most + 1):
        if len(line) > most:
            raise too_much(f"{file.url}: the header", "is longer than", "line_bytes", file.limits)
        yield line


def _is_small(file: File) -> bool:
    return file.size is not None and file.size < _BLOCK and compression_of(file) is None


def _next(opened: Any) -> Any:
    """The next batch that has rows; None at the end."""
    for batch in opened:
        if batch.num_rows:
            return batch
    return None


def _is_float(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind))


def _settled(kind: pa.DataType) -> pa.DataType:
    """Text stays text: dates and times are parsed where they are asked for; a column of nulls is taken for text."""
    if pa.types.is_null(kind) or pa.types.is_temporal(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind):
        return pa.large_string()
    return kind


def _refuse_open_quote(file: File, batch: Any) -> None:
    """A quote that is never closed takes the rest of the file into one value, without a word from the parser."""
    if not batch.num_rows or not batch.num_columns:
        return
    texts = [batch.column(i)[batch.num_rows - 1].as_py() for i in range(batch.num_columns)]
    if not any(isinstance(text, str) and "\n" in text for text in texts):
        return
    quotes = 0
    with reading(file.url), open_native(file) as stream:
        while block := stream.read(_BLOCK):
            quotes += block.count(b'"')
    if quotes % 2:
        raise SourceError(
            f"{file.url}: a quote is opened and never closed: the last value goes on to the end of the file",
            fix="correct the file, or read_csv(..., quoting=False) if quotes mean nothing in it",
        )


def _different(names: tuple[str, ...], file: File) -> tuple[str, ...]:
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise SourceError(
            f"{file.url}: there are two columns {twice!r}", fix="give other names with column_names=[...]"
        )
    return names


def _other_header(first: File, other: File, names: tuple[str, ...], others: tuple[str, ...]) -> SourceError:
    missing, extra = [n for n in names if n not in others], [n for n in others if n not in names]
    how = f"the second has no {missing}" if missing else f"the second also has {extra}" if extra else "another order"
    return SourceError(
        f"{first.url} and {other.url} have different headers: {how}",
        fix="read them apart and join them with cedar.concat",
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
    """The source behind ``cedar.read_csv``.

    Args:
        paths: local paths, fsspec URLs, globs; compressed files are decompressed.
        delimiter: one character.
        header: the first row holds the names; it must be the same in all files.
        column_names: names instead of the header's; without a header, "column_1" and so on by default.
        dtypes: types of columns; the rest are inferred from the first 4 MiB of the first file that has rows: integers,
            floats, booleans, else strings, also where a single value there is nothing else. A later value that does
            not fit is an error.
        null_values: what counts as null, by default the empty field; quoted fields are never null.
        quoting: False where quotes mean nothing: files are then read in pieces, in parallel.
        columns: the columns to read.

    Raises:
        PipelineError: an argument cannot be.

    Example:
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
            f"read_csv(quoting={quoting!r}): True or False is expected, not a constant of the module csv",
            site=user_site(),
            fix="quoting=False for csv.QUOTE_NONE; leave it out for the others",
        )
    nulls = ("",) if null_values is None else tuple(null_values)
    names = None if column_names is None else tuple(column_names)
    flags = as_flag(header, "header", "read_csv"), as_flag(quoting, "quoting", "read_csv")
    dialect = Dialect(delimiter, flags[0], names, nulls, flags[1])
    chosen = None if columns is None else tuple(columns)
    return CsvSource(as_paths(paths, "read_csv"), dialect, tuple((dtypes or {}).items()), chosen)
