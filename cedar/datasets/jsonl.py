"""Read JSON lines: each line is one JSON object; columns and types are inferred from the first 64 rows."""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from cedar.core.boundary import checked_column
from cedar.core.columns import UNKNOWN, ColumnType, Index
from cedar.core.dtypes import infer_type
from cedar.core.errors import RowError, RowRef
from cedar.core.limits import how_to_raise
from cedar.core.values import ValueMismatch
from cedar.datasets.base import Chunk, Split, once, selected
from cedar.datasets.exact import check_value, rounded_rows
from cedar.datasets.files_io import File, actual_format, reading
from cedar.datasets.filesource import FileSource, Paths, as_names, as_paths, as_types
from cedar.datasets.rows import SAMPLE
from cedar.datasets.split_table import SplitTable
from cedar.datasets.text import SPLIT_BYTES, Lines, line_number, line_splits, read_lines

_FAILURES = (pa.ArrowException, ValueError, RecursionError)  # errors that parsers raise for invalid lines
_DECODER = json.JSONDecoder(parse_int=float, strict=False)  # finds where values end; accepts any values
_GAP = re.compile(r"[ \t\n\r]*[{:,]?[ \t\n\r]*")
_HEAD_BYTES = 1 << 16


@dataclass(frozen=True, repr=False)
class JsonlSource(FileSource):
    """JSON lines, in splits of 8 MiB; a compressed file is one streaming split."""

    dtypes: tuple[tuple[str, pa.DataType], ...] = ()
    split_bytes: int = SPLIT_BYTES
    reader: ClassVar[str] = "read_jsonl"
    selections_share: ClassVar[tuple[str, ...]] = ("_types",)
    can_skip_parsing: ClassVar[bool] = True

    def sound_splits(self) -> SplitTable:
        return line_splits(self.listing, self.split_bytes)

    @once
    def _types(self) -> dict[str, ColumnType]:
        """Return the canonical types of all columns; UNKNOWN if values have no common type, so that reading fails."""
        declared = dict(self.dtypes)
        ordinal, rows, offsets = self._first_rows()
        types: dict[str, ColumnType] = dict.fromkeys((key for row in rows for key in row), UNKNOWN)
        for name in types.keys() - declared.keys():
            with suppress(RowError):
                types[name] = self._infer(name, ordinal, rows, offsets)
        return types | declared

    def _first_rows(self) -> tuple[int, list[dict[str, Any]], list[int]]:
        """Return the index of the first file that has rows, up to 64 of its rows, and their byte offsets."""
        rows: list[dict[str, Any]] = []
        offsets: list[int] = []
        every = self.sound_splits()
        for ordinal, file in enumerate(self.listing):
            splits = list(every[every.column("file") == ordinal])
            if splits and splits[0].stop is not None:  # try a small range first; it usually has enough lines
                splits = [replace(splits[0], stop=min(_HEAD_BYTES, splits[0].stop)), *splits]
            for i, split in enumerate(splits):
                if i == 1:
                    rows, offsets = [], []
                for lines in _lines_of(file, split):
                    for start, text in _line_texts(lines):
                        try:
                            rows.append(self._parse(ordinal, file, start, text))
                        except RowError:
                            if self.tolerant and rows:
                                return ordinal, rows, offsets
                            raise
                        offsets.append(start)
                        if len(rows) == SAMPLE:
                            return ordinal, rows, offsets
            if rows:
                return ordinal, rows, offsets
        return 0, rows, offsets

    def _parse(self, ordinal: int, file: File, offset: int, text: bytes) -> dict[str, Any]:
        array = offset == 0 and text.startswith(b"[")  # the file may be one JSON array
        try:
            row = json.loads(text)
        except ValueError as error:
            raise (
                _array_error(file, ordinal) if array else _line_error(file, ordinal, offset, text, str(error))
            ) from error
        except RecursionError:
            raise _too_deep_error(file, ordinal, offset) from None
        if array and isinstance(row, list) and all(isinstance(item, dict) for item in row):
            raise _array_error(file, ordinal)
        if not isinstance(row, dict):
            raise _line_error(file, ordinal, offset, text, f"a JSON object is expected, not {type(row).__name__}")
        odd = next((name for name in row if any("\ud800" <= letter <= "\udfff" for letter in name)), None)
        if odd is not None:
            raise _line_error(file, ordinal, offset, text, f"the key {odd!a} has half of a surrogate pair")
        if text.count(b"{") + text.count(b"[") > file.limits.json_depth and _exceeds_depth(row, file.limits.json_depth):
            raise _too_deep_error(file, ordinal, offset)
        return row

    def _infer(self, name: str, ordinal: int, rows: list[dict[str, Any]], offsets: list[int]) -> pa.DataType:
        file = self.listing[ordinal]
        try:
            kind = infer_type([row.get(name) for row in rows])
        except ValueMismatch as misfit:
            offset = offsets[misfit.index]
            raise _line_error(
                file, ordinal, offset, b"", f"column {name!r}: {misfit.message}", _as_text_fix(name)
            ) from misfit
        if not isinstance(kind, pa.DataType):
            raise _too_large_error(file, ordinal, name, [row.get(name) for row in rows], offsets)
        return kind

    def read(self, split: Split) -> Iterator[Chunk]:
        file = self.listing[split.file]
        for name, kind in self.schema().items():
            if kind is UNKNOWN and name not in self.unread:
                self._infer(name, *self._first_rows())  # raises the error
        for lines in _lines_of(file, split):
            ends = lines.ends()
            starts = Lines.starts(ends)
            # Lines with only white space are not rows.
            starts = starts[np.maximum.reduceat(lines.data, starts) > ord(" ")]
            if not len(starts):
                continue
            line_error = None
            with reading(file.url, f"from byte {lines.start}"):
                try:
                    columns = self._columns(lines.data, len(starts))
                except _FAILURES as error:
                    line_error, valid_rows = self._first_error(split.file, file, lines, starts)
                    line_error.__cause__ = error
                    if not self.tolerant or not valid_rows:
                        raise line_error from error
                    columns, starts = self._columns(lines.data[: starts[valid_rows]], valid_rows), starts[:valid_rows]
            columns = self.with_unread(columns, len(starts))
            yield Chunk(columns, starts + lines.start, len(starts))
            if line_error is not None:
                raise line_error

    def _columns(self, data: Any, rows: int) -> dict[str, Any]:
        """Parse ``rows`` lines into columns; raise the parser's error, or ValueError for another number of objects."""
        types = self._types
        if not types:
            if any(json.loads(text) for text in data.tobytes().split(b"\n") if text.strip()):
                raise ValueError("unexpected field")
            return {}
        wanted = {name: kind for name, kind in self.schema().items() if name not in self.unread}
        asked: dict[str, ColumnType] = dict(wanted) or {"": pa.null()}  # the parser needs a column to count rows
        exact = self._rejects_unknown
        try:
            structs = any(map(_has_struct, asked.values()))  # "ignore" would drop fields of structs
            table = _table(data, types if structs else asked, "error" if structs or exact else "ignore")
        except _FAILURES:
            # The error may come from a column that is not selected, or from a column that is declared as string.
            strings = {name for name, _ in self.dtypes if pa.types.is_large_string(asked.get(name))}
            every = (text for text in data.tobytes().split(b"\n") if text.strip())
            plain = "\n".join(
                _select_members(text.decode(), None if exact else wanted.keys(), strings) for text in every
            )
            table = _table(plain.encode(), asked, "error")
        if table.num_rows != rows:
            raise ValueError("not one object per line")
        columns = {name: checked_column(_with_times(table.column(name), kind)) for name, kind in wanted.items()}
        suspect = rounded_rows(columns)
        if len(suspect):
            lines = [line for line in data.tobytes().split(b"\n") if line.strip()]
            for row in suspect.tolist():
                parsed = json.loads(lines[row])
                for name in wanted:
                    check_value(name, parsed.get(name), columns[name].type)
        return columns

    @property
    def _rejects_unknown(self) -> bool:
        """Return whether all columns are read; if so, a column that is missing in the first rows is an error."""
        return not self.unread and len(self.schema()) == len(self._types)

    def _first_error(self, ordinal: int, file: File, lines: Lines, starts: Index) -> tuple[Exception, int]:
        """Find the first invalid line by bisection; return its error and the number of lines before it."""
        stops = np.append(starts[1:], len(lines.data))
        low, high = 0, len(starts)  # all lines before ``low`` parse; at least one before ``high`` does not
        while high - low > 1:
            middle = (low + high) // 2
            try:
                self._columns(lines.data[starts[low] : stops[middle - 1]], middle - low)
                low = middle
            except _FAILURES:
                high = middle
        text = lines.data[starts[low] : stops[low]].tobytes().strip()
        return self._explain(ordinal, file, lines.start + int(starts[low]), text), low

    def _explain(self, ordinal: int, file: File, offset: int, text: bytes) -> Exception:
        try:
            row = self._parse(ordinal, file, offset, text)
            extra = next((name for name in row if self._rejects_unknown and name not in self._types), None)
            if extra is not None:
                message = f"unexpected column {extra!r}: the first {SAMPLE} rows have {list(self._types)}"
                return _line_error(file, ordinal, offset, text, message, f"set its type: dtypes={{{extra!r}: ...}}")
            self._columns(np.frombuffer(text, dtype=np.uint8), 1)
        except RowError as error:
            return error
        except _FAILURES as error:
            message = re.sub(r"JSON parse error: | in row \d+$", "", str(error))  # the row number is always 0 here
            columns = ", ".join(f"{name}: {kind}" for name, kind in self._types.items())
            fix = f"correct the line, or set types with dtypes={{...}}; the current types are {columns}"
            name = next(
                (name for name in self._types if message.startswith((f"Column(/{name})", f"Column(/{name}/"))), None
            )
            fix = fix if name is None else f"correct the line; or {_as_text_fix(name)}"
            return _line_error(file, ordinal, offset, text, message, fix)
        return _line_error(file, ordinal, offset, text, "it does not match the lines before it")

    def schema(self) -> dict[str, ColumnType]:
        return selected(self._types, self.columns, self.describe())


def _lines_of(file: File, split: Split) -> Iterator[Lines]:
    """Yield the lines of a split, with spaces in place of a byte order mark, which ``json`` rejects in strings."""
    for lines in read_lines(file, split):
        size = len(BOM_UTF8)
        if lines.start == 0 and lines.data[:size].tobytes() == BOM_UTF8:
            spaces = np.full(size, ord(" "), dtype=np.uint8)
            yield Lines(np.concatenate([spaces, lines.data[size:]]), 0)
        else:
            yield lines


def _line_texts(lines: Lines) -> Iterator[tuple[int, bytes]]:
    """Yield the byte offset and text of each line that is not blank."""
    ends = lines.ends()
    for start, stop in zip(Lines.starts(ends).tolist(), ends.tolist(), strict=True):
        text = lines.data[start:stop].tobytes().strip()
        if text:
            yield lines.start + start, text


def _exceeds_depth(row: Any, most: int) -> bool:
    """Return whether values are nested more than ``most`` levels deep in objects and lists."""
    level = [row]
    for _ in range(most):
        level = [v for each in level for v in (each.values() if isinstance(each, dict) else each)]
        level = [v for v in level if isinstance(v, (dict, list))]
    return bool(level)


def _too_deep_error(file: File, ordinal: int, offset: int) -> RowError:
    most = file.limits.json_depth
    message = f"objects and lists are nested deeper than the limit json_depth={most}"
    return _line_error(file, ordinal, offset, b"", message, how_to_raise("json_depth", most))


def _table(data: Any, types: Mapping[str, ColumnType], unknown: str) -> pa.Table:
    """Parse lines into columns of these types; ``unknown`` ("error" or "ignore") applies to unexpected columns."""
    read = pj.ReadOptions(use_threads=False, block_size=len(data) + 1)
    schema = pa.schema([(name, _parser_type(kind)) for name, kind in types.items() if kind is not UNKNOWN])
    parse = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unknown)
    return pj.read_json(pa.BufferReader(pa.py_buffer(data)), read, parse)


def _select_members(text: str, wanted: Container[str] | None, strings: Container[str]) -> str:
    """Return a line with only the ``wanted`` keys (None keeps all); values of ``strings`` become strings of JSON text.

    Examples:
        >>> _select_members('{"a": [1.50, {}], "b": 1, "c": "x"}', {"a", "c"}, {"a", "c"})
        '{"a":"[1.50, {}]","c":"x"}'
    """
    if not isinstance(_DECODER.decode(text), dict):
        raise ValueError("a JSON object is expected")  # noqa: TRY004 - parsers raise ValueError too
    members = []
    at = _GAP.match(text).end()  # type: ignore[union-attr] # the pattern matches any text
    while text[at] != "}":
        key, end = _DECODER.raw_decode(text, at)
        start = _GAP.match(text, end).end()  # type: ignore[union-attr]
        _, stop = _DECODER.raw_decode(text, start)
        value = text[start:stop]
        if key in strings and value[0] != '"' and value != "null":
            value = json.dumps(value, ensure_ascii=False)
        if wanted is None or key in wanted:
            members.append(f"{text[at:end]}:{value}")
        at = _GAP.match(text, stop).end()  # type: ignore[union-attr]
    return f"{{{','.join(members)}}}"


def _as_text_fix(name: str) -> str:
    """Return the advice for errors about a column whose values have no common type."""
    return f"keep its values as JSON text, dtypes={{{name!r}: str}}, or omit it: columns=[...] selects columns"


def _has_struct(kind: ColumnType) -> bool:
    if pa.types.is_struct(kind):
        return True
    return bool(pa.types.is_large_list(kind)) and _has_struct(kind.value_type)


def _parser_type(kind: pa.DataType) -> pa.DataType:
    """Return the type to request from Arrow's JSON parser, which has neither large lists nor dates as strings.

    Timestamps are strings too, since the parser ignores whether they have an offset from UTC.
    """
    if pa.types.is_large_list(kind):
        return pa.list_(_parser_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(f.name, _parser_type(f.type)) for f in kind])
    return pa.string() if pa.types.is_date(kind) or pa.types.is_timestamp(kind) else kind


def _with_times(column: pa.ChunkedArray, kind: ColumnType) -> pa.ChunkedArray:
    """Convert the strings that were parsed in place of dates and timestamps, such as "2024-01-31", at any depth."""
    return column.cast(kind) if isinstance(kind, pa.DataType) and re.search("date32|timestamp", str(kind)) else column


def _array_error(file: File, ordinal: int) -> RowError:
    message = "the file is a JSON array, not JSON lines with one object per line"
    fix = "write a line per object (jq -c '.[]'), or pass the result of json.load to cedar.from_items"
    return _line_error(file, ordinal, 0, b"", message, fix)


def _too_large_error(file: File, ordinal: int, name: str, values: list[Any], offsets: list[int]) -> RowError:
    """Return the error for integers that need more than 64 bits."""
    low, high, at = 0, 0, 0
    for place, value in enumerate(values):
        for number in _integers(value):
            if not low <= number <= high:
                low, high, at = min(low, number), max(high, number), place
    if low >= -(1 << 63) and high < 1 << 64:
        message = f"no integer type holds both {low} and {high}"
    else:
        message = f"no integer type holds {high if high >= 1 << 64 else low}"
    kind = "decimal128(38, 0)" if max(high, -low) < 10**38 else "decimal256(76, 0)"
    fix = f"set a decimal type: dtypes={{{name!r}: pyarrow.{kind}}}, or write them as strings"
    return _line_error(file, ordinal, offsets[at], b"", f"column {name!r}: {message}", fix)


def _integers(value: Any) -> Iterator[int]:
    """Yield the integers in a value at any depth."""
    if isinstance(value, int) and not isinstance(value, bool):
        yield value
    elif isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _integers(each)


def _line_error(
    file: File, ordinal: int, offset: int, text: bytes, message: str, fix: str = "correct the line, or remove it"
) -> RowError:
    message, fix = actual_format(file) or (message, fix)
    shown = text.decode("utf-8", "replace")
    shown = f": {shown[:120]}..." if len(shown) > 120 else f": {shown}" if shown else ""
    return RowError(
        f"{file.url}, line {line_number(file, offset) + 1}: {message[:300]}{shown}",
        row=RowRef(0, ordinal, offset, url=file.url, unit="byte"),
        fix=fix,
    )


def read_jsonl(
    paths: Paths, *, columns: Sequence[str] | None = None, dtypes: Mapping[str, Any] | None = None
) -> JsonlSource:
    """Return the source that ``cedar.read_jsonl`` uses."""
    chosen = as_names(columns, "columns", "read_jsonl")
    return JsonlSource(as_paths(paths, "read_jsonl"), as_types(dtypes, "dtypes", "read_jsonl"), columns=chosen)
