"""Check a Parquet footer before pyarrow reads it, since some damage would crash pyarrow.

pyarrow's C++ code crashes the process with an uncaught exception if a column's metadata is encrypted, or if its size
statistics do not match its schema. cedar therefore first walks the whole footer, which is encoded in Thrift's compact
protocol, and checks every offset.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

_TAIL = 64 << 10  # bytes read first from the end of a file; most footers are shorter
_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
_DEPTH = 32  # maximum nesting of structs and lists; valid footers need 7
_BINARY, _LIST, _SET, _MAP, _STRUCT = 8, 9, 10, 11, 12

# The patterns use possessive quantifiers, so that no file can cause backtracking.
_VARINT = rb"[\x80-\xff]{0,9}+[\x00-\x7f]"
_NUMBER = re.compile(_VARINT)
_TEXT = b"(?>" + b"|".join(re.escape(bytes([n])) + b".{%d}" % n for n in range(128)) + b")"
_BYTE_ARRAY = 6  # a physical type
_MAX_SHAPES = 4  # maximum number of cached shapes for columns of the same type and depth

_WIDTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8}  # bytes of a value, by physical type

Leaf: TypeAlias = tuple[int, int, int, int]
"""A leaf of the schema: physical type, definition levels, repetition levels, bytes of a value or 0 if they vary."""


class BadFooter(ValueError):
    """Raised if passing a footer to pyarrow is not safe; the message has the reason."""


def read_tail(stream: Any, size: int) -> bytes:
    """Return the last bytes of a file of ``size`` bytes, from the start of its metadata to the end.

    Raises:
        BadFooter: the file does not end like a Parquet file.
    """
    tail = _last(stream, size, min(size, _TAIL))
    length = _length(tail)
    if length + 8 > size:
        raise BadFooter(f"the footer says it has {length:,} bytes, the file has {size:,}")
    if length + 8 > len(tail):
        tail = _last(stream, size, length + 8)
    return tail[-length - 8 :]


def metadata_of(tail: bytes) -> Any:
    """Check the last bytes of a file, as ``read_tail`` returns them, and parse their ``FileMetaData``.

    Raises:
        BadFooter: the footer cannot be passed to pyarrow.
    """
    if _length(tail) + 8 != len(tail):
        raise BadFooter("the footer is damaged: its length does not match its length field")
    leaves = check_metadata(tail[:-8])
    metadata = pq.read_metadata(pa.BufferReader(tail))
    if len(metadata.schema) != leaves:
        raise BadFooter("the footer is damaged: its schema can be read in two ways")
    groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    if min(groups, default=0) < 0 or sum(groups) != metadata.num_rows:
        raise BadFooter(f"the footer counts {metadata.num_rows} rows, its row groups {groups}")
    return metadata


def _last(stream: Any, size: int, count: int) -> bytes:
    stream.seek(size - count)
    data: bytes = stream.read(count)
    if len(data) != count:
        raise BadFooter("the file ends early")
    return data


def _length(tail: bytes) -> int:
    """Return the length of the metadata, which the last 8 bytes of a file contain."""
    if len(tail) < 8 or tail[-4:] not in (_MAGIC, _ENCRYPTED):
        raise BadFooter("it does not end as a Parquet file does; it is cut off, or something else")
    if tail[-4:] == _ENCRYPTED:
        raise BadFooter("its footer is encrypted, which is not supported")
    return int.from_bytes(tail[-8:-4], "little")


def check_metadata(data: bytes) -> int:
    """Check a footer and return its number of leaf columns.

    Args:
        data: the Thrift bytes of a ``FileMetaData``.

    Raises:
        BadFooter: pyarrow would crash on the footer or read beyond its end.
    """
    try:
        return _file(data)
    except (IndexError, AttributeError, RecursionError):
        raise BadFooter("the footer is damaged: a field reaches beyond its end") from None


# ---- structs of the format -------------------------------------------------------------------------------------------


def _file(data: bytes) -> int:
    schema: list[Leaf] | None = None
    pos, number = 0, 0
    while data[pos]:
        number, kind, pos = _field(data, pos, number)
        if number == 2 and kind == _LIST:
            if schema is not None:
                raise BadFooter("the footer is damaged: it has two schemas")
            schema, pos = _schema(data, pos)
        elif number == 4 and kind == _LIST:
            if schema is None:
                raise BadFooter("the footer is damaged: row groups come before the schema")
            pos = _row_groups(data, pos, schema)
        elif number == 8:
            raise BadFooter("columns of it are encrypted, which is not supported")
        else:
            pos = _skip(data, pos, kind, 0)
    if schema is None:
        raise BadFooter("the footer is damaged: it has no schema")
    return len(schema)


def _schema(data: bytes, pos: int) -> tuple[list[Leaf], int]:
    """Return the leaves of the schema and its end; elements are in depth-first order, each with its child count."""
    count, kind, pos = _list(data, pos)
    if kind != _STRUCT:
        raise BadFooter("the footer is damaged: its schema is not a list of structs")
    leaves: list[Leaf] = []
    open_: list[list[int]] = []  # per ancestor: remaining children, definition and repetition levels
    for i in range(count):
        node, pos = _element(data, pos)
        while open_ and open_[-1][0] == 0:
            open_.pop()
        if not open_ and i:
            raise BadFooter("the footer is damaged: its schema has elements without a parent")
        if len(open_) > 200:
            raise BadFooter("its schema nests more than 200 levels deep")
        definition, repetition = open_[-1][1:] if open_ else (0, 0)
        if open_:
            open_[-1][0] -= 1
            definition += node[3] != 0
            repetition += node[3] == 2
        if node[3] not in (0, 1, 2) or (i and (node[1] < 0) != (node[5] > 0)):
            raise BadFooter("the footer is damaged: an element of its schema is neither a column nor a group of them")
        if i and not node[5]:
            leaves.append((node[1], definition, repetition, _WIDTHS.get(node[1], node[2] if node[1] == 7 else 0)))
        elif node[5] < 0 or node[5] > count:
            raise BadFooter(f"the footer is damaged: an element of its schema has {node[5]} children")
        else:
            open_.append([node[5], definition, repetition])
    if any(left for left, *_ in open_):
        raise BadFooter("the footer is damaged: its schema has fewer elements than it says")
    return leaves, pos


def _element(data: bytes, pos: int) -> tuple[dict[int, int], int]:
    """Return an element's integer fields (1: type, 2: type length, 3: repetition, 5: children) and its end."""
    fields = {1: -1, 2: 0, 3: 0, 5: 0}
    number = 0
    while data[pos]:
        number, kind, pos = _field(data, pos, number)
        if number in fields and kind == 5:
            fields[number], pos = _zigzag(data, pos)
        else:
            pos = _skip(data, pos, kind, 1)
    return fields, pos + 1


def _row_groups(data: bytes, pos: int, schema: list[Leaf]) -> int:
    count, kind, pos = _list(data, pos)
    if count and kind != _STRUCT:
        raise BadFooter("the footer is damaged: its row groups are not structs")
    known: dict[Leaf, list[re.Pattern[bytes]]] = {}
    for _ in range(count):
        number, columns = 0, None
        while data[pos]:
            number, kind, pos = _field(data, pos, number)
            if number == 1 and kind == _LIST:
                columns, kind, pos = _list(data, pos)
                if columns != len(schema) or (columns and kind != _STRUCT):
                    raise BadFooter(f"the footer is damaged: {columns} columns in a row group, {len(schema)} in all")
                for leaf in schema:
                    pos = _column(data, pos, leaf, known)
            else:
                pos = _skip(data, pos, kind, 2)
        if columns is None and schema:
            raise BadFooter("the footer is damaged: a row group without columns")
        pos += 1
    return pos


def _column(data: bytes, pos: int, leaf: Leaf, known: dict[Leaf, list[re.Pattern[bytes]]]) -> int:
    """Return the end of a column chunk's metadata; check it unless a chunk of the same shape has passed the checks."""
    shapes = known.setdefault(leaf, [])
    for shape in shapes:
        if match := shape.match(data, pos):
            return match.end()
    end = _checked_column(data, pos, leaf)
    if len(shapes) < _MAX_SHAPES:
        shapes.append(_regex(b"".join(_shape(data, pos, 0, leaf[3] > 0)[0])))
    return end


def _checked_column(data: bytes, pos: int, leaf: Leaf) -> int:
    number, seen = 0, False
    while data[pos]:
        number, kind, pos = _field(data, pos, number)
        if number == 3 and kind == _STRUCT:
            pos, seen = _column_metadata(data, pos, leaf), True
        elif number in (8, 9):
            raise BadFooter("columns of it are encrypted, which is not supported")
        else:
            pos = _skip(data, pos, kind, 3)
    if not seen:
        raise BadFooter("the footer is damaged: a column without metadata")
    return pos + 1


def _column_metadata(data: bytes, pos: int, leaf: Leaf) -> int:
    number, physical = 0, None
    while data[pos]:
        number, kind, pos = _field(data, pos, number)
        if number == 1 and kind == 5:
            physical, pos = _zigzag(data, pos)
        elif number == 12 and kind == _STRUCT:
            pos = _bounds(data, pos, leaf)
        elif number == 16 and kind == _STRUCT:
            pos = _sizes(data, pos, leaf)
        else:
            pos = _skip(data, pos, kind, 4)
    if physical != leaf[0]:
        raise BadFooter(f"the footer is damaged: a column of physical type {physical}, in its schema {leaf[0]}")
    return pos + 1


def _bounds(data: bytes, pos: int, leaf: Leaf) -> int:
    """Check statistics: the minimum and maximum of a fixed-length type must have the length of a value."""
    number = 0
    while data[pos]:
        number, kind, pos = _field(data, pos, number)
        if number in (1, 2, 5, 6) and leaf[3]:
            size = _unsigned(data, pos)[0]
            if kind != _BINARY or size != leaf[3]:
                raise BadFooter(f"the footer is damaged: a bound of {size} bytes for values of {leaf[3]}")
        pos = _skip(data, pos, kind, 5)
    return pos + 1


def _sizes(data: bytes, pos: int, leaf: Leaf) -> int:
    """Check size statistics: a histogram has one count per level, and only byte arrays have a total size."""
    number = 0
    while data[pos]:
        number, kind, pos = _field(data, pos, number)
        if number == 1 and leaf[0] != _BYTE_ARRAY:
            raise BadFooter("the footer is damaged: size statistics that do not fit a column's type")
        if number in (2, 3):
            if kind != _LIST:
                raise BadFooter("the footer is damaged: a histogram that is not a list")
            count = _list(data, pos)[0]
            levels = leaf[4 - number] + 1  # field 2: repetition levels, field 3: definition levels
            if count not in (0, levels):
                raise BadFooter(f"the footer is damaged: a histogram of {count} levels if there are {levels}")
        pos = _skip(data, pos, kind, 5)
    return pos + 1


# ---- Thrift's compact protocol ---------------------------------------------------------------------------------------


def numbers_of(data: bytes, pos: int, path: tuple[int, ...] = ()) -> tuple[dict[tuple[int, ...], int], int]:
    """Return the numbers and flags of a struct such as a page's header, by their field ids, and where it ends.

    Raises:
        BadFooter, IndexError: the struct is damaged.

    Examples:
        >>> numbers_of(bytes([0x15, 4, 0x4C, 0x15, 6, 0, 0]), 0)  # {1: 2, 5: {1: 3}}
        ({(1,): 2, (5, 1): 3}, 7)
    """
    found: dict[tuple[int, ...], int] = {}
    number = 0
    while data[pos]:
        number, kind, pos = _field(data, pos, number)
        if kind in (1, 2):
            found[*path, number] = kind == 1
        elif kind in (4, 5, 6):
            found[*path, number], pos = _zigzag(data, pos)
        elif kind == _STRUCT and not path:
            inner, pos = numbers_of(data, pos, (number,))
            found |= inner
        else:
            pos = _skip(data, pos, kind, 0)
    return found, pos + 1


def _field(data: bytes, pos: int, last: int) -> tuple[int, int, int]:
    """Return the id and type of the field at ``pos``, and where its value begins."""
    head = data[pos]
    if head >> 4:
        number, pos = last + (head >> 4), pos + 1
    else:
        number, pos = _zigzag(data, pos + 1)
    if not 0 < number < 1 << 15:  # libraries with 16-bit field ids would read another field
        raise BadFooter(f"the footer is damaged: a field of number {number}")
    return number, head & 15, pos


def _zigzag(data: bytes, pos: int) -> tuple[int, int]:
    value, pos = _unsigned(data, pos)
    return value >> 1 ^ -(value & 1), pos


def _unsigned(data: bytes, pos: int) -> tuple[int, int]:
    byte = data[pos]
    if byte < 128:
        return byte, pos + 1
    value, shift = byte & 127, 7
    while True:
        pos += 1
        byte = data[pos]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, pos + 1
        shift += 7
        if shift > 63:
            raise BadFooter("the footer is damaged: a number of more than 64 bits")


def _list(data: bytes, pos: int) -> tuple[int, int, int]:
    """Return the length and item type of a list, and where its items begin."""
    head = data[pos]
    count, pos = (head >> 4, pos + 1) if head < 0xF0 else _unsigned(data, pos + 1)
    if count > len(data) - pos:
        raise BadFooter(f"the footer is damaged: a list of {count:,} items in {len(data):,} bytes")
    return count, head & 15, pos


def _skip(data: bytes, pos: int, kind: int, depth: int) -> int:
    """Return where the value of a field ends."""
    if kind in (1, 2):
        return pos
    if kind in (4, 5, 6):
        return int(_NUMBER.match(data, pos).end())  # type: ignore[union-attr]
    if kind == _BINARY:
        size, pos = _unsigned(data, pos)
        if size > len(data) - pos:
            raise BadFooter(f"the footer is damaged: a string of {size:,} bytes")
        return pos + size
    if depth > _DEPTH:
        raise BadFooter("the footer is damaged: it nests too deeply")
    if kind == _STRUCT:
        while data[pos]:
            _, kind, pos = _field(data, pos, 0)
            pos = _skip(data, pos, kind, depth + 1)
        return pos + 1
    if kind in (_LIST, _SET):
        count, kind, pos = _list(data, pos)
        if kind in (1, 2, 3):
            return pos + count
        for _ in range(count):
            pos = _skip(data, pos, kind, depth + 1)
        return pos
    if kind in (3, 7):
        return pos + (1 if kind == 3 else 8)
    raise BadFooter(f"the footer is damaged: a field of type {kind}")


# ---- shapes ----------------------------------------------------------------------------------------------------------


def _shape(data: bytes, pos: int, depth: int, fixed: bool) -> tuple[list[bytes], int]:
    """Return a pattern that matches structs that differ only in numbers and strings, and where this struct ends.

    Structs that match must agree in everything that the checks depend on: the fields, the lengths of lists, and the
    32-bit numbers directly in the column's metadata, such as the physical type. If values have a ``fixed`` length, the
    lengths of strings must agree too, since bounds are stored as strings.
    """
    parts = []
    while data[pos]:
        start = pos
        _, kind, pos = _field(data, pos, 0)
        parts.append(re.escape(data[start:pos]))
        begin = pos
        pos = _skip(data, pos, kind, 3)
        if kind == _STRUCT:
            parts += _shape(data, begin, depth + 1, fixed)[0]
        elif kind == _LIST:
            parts += _shape_of_list(data, begin, depth, fixed)
        elif depth == 1 and kind == 5:
            parts.append(re.escape(data[begin:pos]))
        elif kind == _BINARY and fixed:
            size, text = _unsigned(data, begin)
            parts.append(re.escape(data[begin:text]) + b".{%d}" % size)
        else:
            parts.append(_pattern(kind))
    return [*parts, rb"\0"], pos + 1


def _shape_of_list(data: bytes, pos: int, depth: int, fixed: bool) -> list[bytes]:
    start = pos
    count, kind, pos = _list(data, pos)
    parts = [re.escape(data[start:pos])]
    if kind != _STRUCT:
        return [*parts, b"(?:%b){%d}+" % (b"." if kind in (1, 2) else _pattern(kind), count)]
    for _ in range(count):
        inner, pos = _shape(data, pos, depth + 2, fixed)
        parts += inner
    return parts


def _pattern(kind: int) -> bytes:
    """Return the pattern of a value; for unexpected types it never matches, so that such columns are always checked."""
    return {1: b"", 2: b"", 4: _VARINT, 5: _VARINT, 6: _VARINT, _BINARY: _TEXT}.get(kind, b"(?!)")


@lru_cache(maxsize=64)
def _regex(pattern: bytes) -> re.Pattern[bytes]:
    return re.compile(pattern, re.DOTALL)
