"""Parquet footers taken apart and changed by the field: random bytes rarely give a footer that can be read and lies."""

from __future__ import annotations

import random
from typing import Any, TypeAlias

# A struct is ("struct", [[id, type, value], ...]), a list ("list", type, [values]); booleans are types 1 and 2.
Value: TypeAlias = Any
I16, I32, I64, BINARY, LIST, SET, STRUCT = 4, 5, 6, 8, 9, 10, 12


def parsed(data: bytes, at: int = 0) -> tuple[Value, int]:
    """The struct in Thrift's compact protocol at ``at``, and where it ends."""
    fields, last = [], 0
    while data[at]:
        head, at = data[at], at + 1
        if head >> 4:
            last += head >> 4
        else:
            last, at = _signed(data, at)
        value, at = _value(data, at, head & 15)
        fields.append([last, head & 15, value])
    return ("struct", fields), at + 1


def _value(data: bytes, at: int, kind: int) -> tuple[Value, int]:
    if kind in (1, 2):
        return kind == 1, at
    if kind == 3:
        return data[at], at + 1
    if kind in (I16, I32, I64):
        return _signed(data, at)
    if kind == 7:
        return data[at : at + 8], at + 8
    if kind == BINARY:
        size, at = _number(data, at)
        return data[at : at + size], at + size
    if kind == STRUCT:
        return parsed(data, at)
    if kind not in (LIST, SET):
        raise ValueError(f"type {kind}")
    head, at = data[at], at + 1
    size = head >> 4
    if size == 15:
        size, at = _number(data, at)
    values = []
    for _ in range(size):
        if head & 15 in (1, 2):
            value, at = data[at], at + 1
        else:
            value, at = _value(data, at, head & 15)
        values.append(value)
    return ("list", head & 15, values), at


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] & 0x80:
        value, shift, at = value | (data[at] & 0x7F) << shift, shift + 7, at + 1
    return value | data[at] << shift, at + 1


def _signed(data: bytes, at: int) -> tuple[int, int]:
    value, at = _number(data, at)
    return value >> 1 ^ -(value & 1), at


def written(value: Value) -> bytes:
    """The bytes of a struct."""
    made, last = bytearray(), 0
    for number, kind, inner in value[1]:
        if 0 < number - last < 16:
            made.append((number - last) << 4 | kind)
        else:
            made.append(kind)
            made += _signed_bytes(number)
        last = number
        made += _bytes(kind, inner)
    return bytes(made) + b"\0"


def _bytes(kind: int, value: Value) -> bytes:
    if kind in (1, 2):
        return b""
    if kind == 3:
        return bytes([value & 255])
    if kind in (I16, I32, I64):
        return _signed_bytes(value)
    if kind == 7:
        return bytes(value)
    if kind == BINARY:
        return _number_bytes(len(value)) + bytes(value)
    if kind == STRUCT:
        return written(value)
    _, inner, values = value
    head = bytes([len(values) << 4 | inner]) if len(values) < 15 else bytes([0xF0 | inner]) + _number_bytes(len(values))
    return head + b"".join(bytes([v & 255]) if inner in (1, 2) else _bytes(inner, v) for v in values)


def _number_bytes(value: int) -> bytes:
    made = bytearray()
    value &= (1 << 64) - 1
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


def _signed_bytes(value: int) -> bytes:
    return _number_bytes(value << 1 ^ value >> 63)


def footer_of(data: bytes) -> tuple[Value, int]:
    """A Parquet file's metadata, and where they begin."""
    begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    return parsed(data, begin)[0], begin


def with_footer(data: bytes, begin: int, value: Value) -> bytes:
    """A Parquet file with other metadata."""
    made = written(value)
    return data[:begin] + made + len(made).to_bytes(4, "little") + b"PAR1"


def places(value: Value) -> list[list[Any]]:
    """Every field of every struct inside: [id, type, value], to be changed in place."""
    found = []
    for entry in value[1]:
        found.append(entry)
        if entry[1] == STRUCT:
            found += places(entry[2])
        elif entry[1] == LIST and entry[2][1] == STRUCT:
            for inner in entry[2][2]:
                found += places(inner)
    return found


def change(value: Value, rng: random.Random) -> None:
    """Changes one field: a number, a length, its identity, or takes it away or twice."""
    spots = places(value)
    entry = rng.choice(spots)
    number, kind, inner = entry
    if rng.random() < 0.12:  # another identity: what was there is missing, what is there is odd
        entry[0] = max(1, number + rng.choice([-1, 1, 2]))
        return
    if kind in (1, 2):
        entry[1] = 3 - kind
    elif kind in (I16, I32, I64):
        entry[2] = rng.choice(
            [0, 1, -1, inner + 1, inner - 1, inner * 2, 2**31 - 1, -(2**31), 2**62, rng.randrange(64)]
        )
    elif kind == BINARY:
        cut = rng.randrange(len(inner) + 1)
        entry[2] = rng.choice([b"", inner[:cut], inner + b"\0", inner[::-1], inner * 2, b"\xff" * len(inner)])
    elif kind == STRUCT:
        if rng.random() < 0.5:
            inner[1].clear()
        else:
            inner[1].append([99, STRUCT, ("struct", [])])
    elif kind == LIST:
        items = inner[2]
        if items and rng.random() < 0.5:
            del items[rng.randrange(len(items))]
        elif items:
            items.insert(rng.randrange(len(items)), items[rng.randrange(len(items))])
        if items and inner[1] in (I32, I64) and rng.random() < 0.5:
            items[rng.randrange(len(items))] = rng.choice([-1, 0, 1, 2**31, 2**62])
