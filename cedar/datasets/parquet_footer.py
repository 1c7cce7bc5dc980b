"""Parquet footers as bytes: check one before pyarrow reads it, and join those of separately encoded row groups.

pyarrow's C++ code crashes the process with an uncaught exception if a column's metadata is encrypted, or if its size
statistics do not match its schema. cedar therefore first walks the whole footer, which is encoded in Thrift's compact
protocol, and checks every offset.

A file that is written consists of row groups that were encoded concurrently, each as a small Parquet file. Their pages
are copied unchanged; in the footer, only offsets from the beginning of the file and row group numbers change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
MAX_ROW_GROUPS = 10_000  # per file; the format stores row group numbers in 16 bits
_TAIL = 64 << 10  # bytes read first from the end of a file; most footers are shorter
_DEPTH = 32  # maximum nesting of structs and lists; valid footers need 7
_BINARY, _LIST, _SET, _STRUCT = 8, 9, 10, 12

# The patterns use possessive quantifiers, so that no file can cause backtracking.
_VARINT = rb"[\x80-\xff]{0,9}+[\x00-\x7f]"
_NUMBER = re.compile(_VARINT)
_TEXT = b"(?>" + b"|".join(re.escape(bytes([n])) + b".{%d}" % n for n in range(128)) + b")"
_NEVER = b"(?!)"  # a value of an unexpected type matches no pattern, so that such columns are always checked
_PATTERNS = {1: b"", 2: b"", 4: _VARINT, 5: _VARINT, 6: _VARINT, _BINARY: _TEXT}
_MAX_SHAPES = 4  # maximum number of cached shapes for columns of the same type and depth

_BYTE_ARRAY = 6  # a physical type
_WIDTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8}  # bytes of a value, by physical type

Leaf: TypeAlias = tuple[int, int, int, int]
"""A leaf of the schema: physical type, definition levels, repetition levels, bytes of a value or 0 if they vary."""

Rules: TypeAlias = "dict[int, Any]"  # field id -> how to change the value, or the rules for structs in the value
_OFFSET, _ORDINAL = "moved", "number"
_ROW_GROUP: Rules = {
    1: {2: _OFFSET, 3: {9: _OFFSET, 10: _OFFSET, 11: _OFFSET, 14: _OFFSET}, 4: _OFFSET, 6: _OFFSET},  # for each column
    5: _OFFSET,
    7: _ORDINAL,
}


class BadFooter(ValueError):
    """Raised if passing a footer to pyarrow is not safe; the message has the reason."""


class _DamagedFooter(BadFooter):
    def __init__(self, problem: str) -> None:
        super().__init__(f"the footer is damaged: {problem}")


def read_tail(stream: Any, size: int) -> bytes:
    """Return the last bytes of a file of ``size`` bytes, from the start of its metadata to the end."""
    count = min(size, _TAIL)
    while True:
        stream.seek(size - count)
        tail: bytes = stream.read(count)
        if len(tail) != count:
            raise BadFooter("the file ends early")
        length = _length(tail)
        if length + 8 > size:
            raise BadFooter(f"the footer says it has {length:,} bytes, the file has {size:,}")
        if length + 8 <= count:
            return tail[-length - 8 :]
        count = length + 8


def metadata_of(tail: bytes) -> Any:
    """Check the last bytes of a file, as ``read_tail`` returns them, and parse their ``FileMetaData``."""
    if _length(tail) + 8 != len(tail):
        raise _DamagedFooter("its length does not match its length field")
    leaves = check_metadata(tail[:-8])
    metadata = pq.read_metadata(pa.BufferReader(tail))
    if len(metadata.schema) != leaves:
        raise _DamagedFooter("its schema can be read in two ways")
    groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    if min(groups, default=0) < 0 or sum(groups) != metadata.num_rows:
        raise BadFooter(f"the footer counts {metadata.num_rows} rows, its row groups {groups}")
    return metadata


def _length(tail: bytes) -> int:
    """Return the length of the metadata, which the last 8 bytes of a file contain."""
    if len(tail) < 8 or tail[-4:] not in (MAGIC, _ENCRYPTED):
        raise BadFooter("it does not end as a Parquet file does; it is cut off, or something else")
    if tail[-4:] == _ENCRYPTED:
        raise BadFooter("its footer is encrypted, which is not supported")
    return int.from_bytes(tail[-8:-4], "little")


# ---- Thrift's compact protocol ---------------------------------------------------------------------------------------


class _Thrift:
    """Reads encoded structs; ``pos`` is where the next value begins, ``head`` where the header of its field does."""

    def __init__(self, data: bytes, pos: int = 0) -> None:
        self.data, self.pos, self.head = data, pos, pos

    def fields(self, depth: int = 0) -> Iterator[tuple[int, int]]:
        """Yield the id and type of each field of a struct; skip values that the caller does not read."""
        number = 0
        while first := self.data[self.pos]:
            self.head = self.pos
            self.pos += 1
            number = number + (first >> 4) if first >> 4 else self.number()
            if not 0 < number < 1 << 15:  # libraries with 16-bit field ids would read another field
                raise _DamagedFooter(f"a field of number {number}")
            value = self.pos
            yield number, first & 15
            if self.pos == value:
                self.skip(first & 15, depth)
        self.pos += 1

    def number(self) -> int:
        """Read a signed number."""
        value = self.unsigned()
        return value >> 1 ^ -(value & 1)

    def unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.pos]
            self.pos += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise _DamagedFooter("a number of more than 64 bits")

    def list_header(self) -> tuple[int, int]:
        """Read the header of a list; return its length and the type of its items."""
        head = self.data[self.pos]
        self.pos += 1
        count = head >> 4 if head < 0xF0 else self.unsigned()
        if count > len(self.data) - self.pos:
            raise _DamagedFooter(f"a list of {count:,} items in {len(self.data):,} bytes")
        return count, head & 15

    def skip(self, kind: int, depth: int = 0) -> None:
        """Move to the end of a value."""
        if kind in (4, 5, 6):
            self.pos = _NUMBER.match(self.data, self.pos).end()  # type: ignore[union-attr]
        elif kind == _BINARY:
            size = self.unsigned()
            if size > len(self.data) - self.pos:
                raise _DamagedFooter(f"a string of {size:,} bytes")
            self.pos += size
        elif kind in (3, 7):
            self.pos += 1 if kind == 3 else 8
        elif kind in (_STRUCT, _LIST, _SET):
            if depth > _DEPTH:
                raise _DamagedFooter("it nests too deeply")
            if kind == _STRUCT:
                for _ in self.fields(depth + 1):
                    pass
                return
            count, item = self.list_header()
            if item in (1, 2, 3):
                self.pos += count
                return
            for _ in range(count):
                self.skip(item, depth + 1)
        elif kind not in (1, 2):
            raise _DamagedFooter(f"a field of type {kind}")


# ---- checks ----------------------------------------------------------------------------------------------------------


def check_metadata(data: bytes) -> int:
    """Check a footer, the Thrift bytes of a ``FileMetaData``, and return its number of leaf columns."""
    schema: list[Leaf] | None = None
    thrift = _Thrift(data)
    try:
        for number, kind in thrift.fields():
            if number == 2 and kind == _LIST:
                if schema is not None:
                    raise _DamagedFooter("it has two schemas")
                schema = _read_schema(thrift)
            elif number == 4 and kind == _LIST:
                if schema is None:
                    raise _DamagedFooter("row groups come before the schema")
                _check_row_groups(thrift, schema)
            elif number == 8:
                raise BadFooter("columns of it are encrypted, which is not supported")
    except (IndexError, AttributeError, RecursionError):
        raise _DamagedFooter("a field reaches beyond its end") from None
    if schema is None:
        raise _DamagedFooter("it has no schema")
    return len(schema)


def _read_schema(thrift: _Thrift) -> list[Leaf]:
    """Return the leaves of the schema; its elements are in depth-first order, each with its number of children."""
    count, kind = thrift.list_header()
    if kind != _STRUCT:
        raise _DamagedFooter("its schema is not a list of structs")
    leaves: list[Leaf] = []
    open_: list[list[int]] = []  # per ancestor: remaining children, definition and repetition levels
    for i in range(count):
        physical, length, repeats, children = _read_element(thrift)
        while open_ and open_[-1][0] == 0:
            open_.pop()
        if not open_ and i:
            raise _DamagedFooter("its schema has elements without a parent")
        if len(open_) > 200:
            raise BadFooter("its schema nests more than 200 levels deep")
        definition, repetition = open_[-1][1:] if open_ else (0, 0)
        if open_:
            open_[-1][0] -= 1
            definition += repeats != 0
            repetition += repeats == 2
        if repeats not in (0, 1, 2) or (i and (physical < 0) != (children > 0)):
            raise _DamagedFooter("an element of its schema is neither a column nor a group of them")
        if i and not children:
            leaves.append((physical, definition, repetition, _WIDTHS.get(physical, length if physical == 7 else 0)))
        elif children < 0 or children > count:
            raise _DamagedFooter(f"an element of its schema has {children} children")
        else:
            open_.append([children, definition, repetition])
    if any(left for left, *_ in open_):
        raise _DamagedFooter("its schema has fewer elements than it says")
    return leaves


def _read_element(thrift: _Thrift) -> Iterable[int]:
    """Return an element's physical type, bytes of a value, repetition and number of children."""
    element = {1: -1, 2: 0, 3: 0, 5: 0}
    for number, kind in thrift.fields(1):
        if number in element and kind == 5:
            element[number] = thrift.number()
    return element.values()


def _check_row_groups(thrift: _Thrift, schema: list[Leaf]) -> None:
    count, kind = thrift.list_header()
    if count and kind != _STRUCT:
        raise _DamagedFooter("its row groups are not structs")
    known: dict[Leaf, list[re.Pattern[bytes]]] = {}
    for _ in range(count):
        columns = None
        for number, kind in thrift.fields(2):
            if number == 1 and kind == _LIST:
                columns, kind = thrift.list_header()
                if columns != len(schema) or (columns and kind != _STRUCT):
                    raise _DamagedFooter(f"{columns} columns in a row group, {len(schema)} in all")
                for leaf in schema:
                    _check_column(thrift, leaf, known.setdefault(leaf, []))
        if columns is None and schema:
            raise _DamagedFooter("a row group without columns")


def _check_column(thrift: _Thrift, leaf: Leaf, shapes: list[re.Pattern[bytes]]) -> None:
    """Check the metadata of a column chunk, unless a chunk of the same shape has passed the checks."""
    for shape in shapes:
        if match := shape.match(thrift.data, thrift.pos):
            thrift.pos = match.end()
            return
    begin, seen = thrift.pos, False
    for number, kind in thrift.fields(3):
        if number == 3 and kind == _STRUCT:
            seen, physical = True, None
            for inner, inner_kind in thrift.fields(4):
                if inner == 1 and inner_kind == 5:
                    physical = thrift.number()
                elif inner in (12, 16) and inner_kind == _STRUCT:
                    (_check_bounds if inner == 12 else _check_sizes)(thrift, leaf)
            if physical != leaf[0]:
                raise _DamagedFooter(f"a column of physical type {physical}, in its schema {leaf[0]}")
        elif number in (8, 9):
            raise BadFooter("columns of it are encrypted, which is not supported")
    if not seen:
        raise _DamagedFooter("a column without metadata")
    if len(shapes) < _MAX_SHAPES:
        shapes.append(re.compile(b"".join(_shape(_Thrift(thrift.data, begin), 0, leaf[3] > 0)), re.DOTALL))


def _check_bounds(thrift: _Thrift, leaf: Leaf) -> None:
    """Check statistics: the minimum and maximum of a fixed-length type must have the length of a value."""
    for number, kind in thrift.fields(5):
        if number in (1, 2, 5, 6) and leaf[3]:
            value = thrift.pos
            size = thrift.unsigned()
            if kind != _BINARY or size != leaf[3]:
                raise _DamagedFooter(f"a bound of {size} bytes for values of {leaf[3]}")
            thrift.pos = value


def _check_sizes(thrift: _Thrift, leaf: Leaf) -> None:
    """Check size statistics: a histogram has one count per level, and only byte arrays have a total size."""
    for number, kind in thrift.fields(5):
        if number == 1 and leaf[0] != _BYTE_ARRAY:
            raise _DamagedFooter("size statistics that do not fit a column's type")
        if number in (2, 3):
            if kind != _LIST:
                raise _DamagedFooter("a histogram that is not a list")
            value = thrift.pos
            count = thrift.list_header()[0]
            levels = leaf[4 - number] + 1  # field 2: repetition levels, field 3: definition levels
            if count not in (0, levels):
                raise _DamagedFooter(f"a histogram of {count} levels if there are {levels}")
            thrift.pos = value


def _shape(thrift: _Thrift, depth: int, fixed: bool) -> Iterator[bytes]:
    """Yield the parts of a pattern that matches structs that differ only in numbers and strings.

    Structs that match must agree in everything that the checks depend on: the fields, the lengths of lists, and the
    32-bit numbers directly in the column's metadata, such as the physical type. If values have a ``fixed`` length, the
    lengths of strings must agree too, since bounds are stored as strings.
    """
    data = thrift.data
    for _, kind in thrift.fields():
        yield re.escape(data[thrift.head : thrift.pos])
        value = thrift.pos
        if kind == _STRUCT:
            yield from _shape(thrift, depth + 1, fixed)
        elif kind == _LIST:
            count, item = thrift.list_header()
            yield re.escape(data[value : thrift.pos])
            for _ in range(count if item == _STRUCT else 0):
                yield from _shape(thrift, depth + 2, fixed)
            if item != _STRUCT:
                yield b"(?:%b){%d}+" % (b"." if item in (1, 2) else _PATTERNS.get(item, _NEVER), count)
                thrift.pos = value  # skips the items
        elif depth == 1 and kind == 5:
            thrift.skip(kind)
            yield re.escape(data[value : thrift.pos])
        elif kind == _BINARY and fixed:
            size = thrift.unsigned()
            yield re.escape(data[value : thrift.pos]) + b".{%d}" % size
            thrift.pos = value
        else:
            yield _PATTERNS.get(kind, _NEVER)
    yield rb"\0"


# ---- joining ---------------------------------------------------------------------------------------------------------


class RowGroups:
    """Collects the row groups of a Parquet file that is being written.

    Examples:
        >>> import io, pyarrow as pa, pyarrow.parquet as pq
        >>> groups, file = RowGroups(), bytearray(MAGIC)
        >>> for xs in [1, 2], [3]:
        ...     pq.write_table(pa.table({"x": xs}), sink := io.BytesIO())
        ...     file += groups.add(sink.getvalue(), len(file))
        >>> file += groups.footer()
        >>> pq.read_table(io.BytesIO(file))["x"].to_pylist(), pq.read_metadata(io.BytesIO(file)).num_row_groups
        ([1, 2, 3], 2)
    """

    def __init__(self) -> None:
        self._groups: list[bytes] = []
        self._rows = 0
        self._fields: list[tuple[int, bytes, bytes]] = []  # fields of the first footer: id, header, value

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, file: Any, pos: int) -> memoryview:
        """Add the row groups of a small Parquet file, and return their bytes, to be written at offset ``pos``."""
        view = memoryview(file).cast("B")
        length = int.from_bytes(view[-8:-4], "little")
        footer, body = bytes(view[-8 - length : -8]), view[len(MAGIC) : -8 - length]
        thrift, fields = _Thrift(footer), []
        for number, kind in thrift.fields():
            head, value = thrift.head, thrift.pos
            if number == 3:
                self._rows += thrift.number()
            elif number == 4:
                for _ in range(thrift.list_header()[0]):
                    self._groups.append(_shifted(thrift, _ROW_GROUP, pos - len(MAGIC), len(self._groups)))
            else:
                thrift.skip(kind)
            fields.append((number, footer[head:value], footer[value : thrift.pos]))
        self._fields = self._fields or fields
        return body

    def footer(self) -> bytes:
        """Return the footer of the joined file, up to its last byte."""
        encoded, count = bytearray(), len(self._groups)
        for number, head, value in self._fields:
            encoded += head
            if number == 3:
                encoded += _encoded(self._rows << 1)
            elif number == 4:
                encoded += bytes([count << 4 | _STRUCT]) if count < 15 else bytes([0xF0 | _STRUCT]) + _encoded(count)
                encoded += b"".join(self._groups)
            else:
                encoded += value
        encoded += b"\0"
        return bytes(encoded) + len(encoded).to_bytes(4, "little") + MAGIC


def _shifted(thrift: _Thrift, rules: Rules, shift: int, ordinal: int) -> bytes:
    """Read a struct, and return a copy in which the offsets are increased by ``shift`` bytes."""
    data, encoded = thrift.data, bytearray()
    for number, kind in thrift.fields():
        head, start, rule = thrift.head, thrift.pos, rules.get(number)
        if isinstance(rule, str):
            value = thrift.number()
            value = ordinal if rule == _ORDINAL else value + shift * (value > 0)  # 0 means no offset
            encoded += data[head:start] + _encoded(value << 1 if value >= 0 else (-value << 1) - 1)
        elif isinstance(rule, dict) and kind == _STRUCT:
            encoded += data[head:start] + _shifted(thrift, rule, shift, ordinal)
        elif isinstance(rule, dict) and kind == _LIST:
            count = thrift.list_header()[0]
            encoded += data[head : thrift.pos]
            for _ in range(count):
                encoded += _shifted(thrift, rule, shift, ordinal)
        else:
            thrift.skip(kind)
            encoded += data[head : thrift.pos]
    return bytes(encoded) + b"\0"


def _encoded(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
