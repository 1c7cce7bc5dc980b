"""A store entry: one value as bytes. It has a body, JSON that describes it, and checksums of both.

The body comes first, so that it can be memory-mapped. The JSON has the entry's name, the versions that wrote it, the
size and CRC-32 of the body, and a description of the body. The length and CRC-32 of the JSON and a magic number follow.
Checksums detect damage, not malicious changes, so readers also validate the description against the body.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

FORMAT = 7
MAGIC = b"CEDARKEP"
TAIL = struct.Struct("<QI8s")

Versions: TypeAlias = Mapping[str, str]
Write: TypeAlias = Callable[[Any], dict[str, Any]]
"""Writes a body at the beginning of a pyarrow output stream; returns its description as JSON."""


class Damaged(ValueError):
    """Raised if an entry cannot be used; the message explains why."""


class OtherVersion(Damaged):
    """Raised if an entry was written by other versions of the code, of libraries or of the format."""


@dataclass(frozen=True)
class Entry:
    """An entry that was read: its body and the description of the body."""

    body: memoryview
    about: dict[str, Any]


def tail(name: str, about: Mapping[str, Any], versions: Versions, size: int, checksum: int) -> bytes:
    """Return the bytes to append to a body of ``size`` bytes with this CRC-32."""
    description = {"name": name, "versions": dict(versions), "size": size, "crc": checksum, "about": about}
    text = json.dumps(description).encode()
    return text + TAIL.pack(len(text), zlib.crc32(text), MAGIC)


def sealed(name: str, write: Write, versions: Versions) -> bytes:
    """Return a complete entry, body and tail, as bytes."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    about = write(sink)
    body = sink.getvalue()
    return b"".join((body, tail(name, about, versions, body.size, zlib.crc32(body))))


def opened(raw: Any, name: str, versions: Versions, checked: bool = False) -> Entry:
    """Check and return an entry, whose body is a view of ``raw``.

    Args:
        raw: bytes, or a memory map.
        name: the expected name of the entry.
        versions: the expected versions in the entry.
        checked: True if this process has already verified the checksum of the body.

    Raises:
        Damaged: the entry is truncated or changed, has other versions, or is stored under another name.
    """
    view = memoryview(raw)
    length, checksum, magic = TAIL.unpack(view[-TAIL.size :]) if len(view) >= TAIL.size else (0, 0, b"")
    if magic != MAGIC or length > len(view) - TAIL.size:
        raise Damaged("it is cut short, or not an entry")
    text = bytes(view[-TAIL.size - length : -TAIL.size])
    if zlib.crc32(text) != checksum:
        raise Damaged("its checksum is wrong")
    try:
        description = json.loads(text)
        fields = [description[key] for key in ("versions", "name", "size", "crc", "about")]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged("its description cannot be read") from error
    if fields[0] != dict(versions):
        raise OtherVersion("another version wrote it")
    if fields[1] != name:
        raise Damaged("it contains another entry, stored under this name")
    size = fields[2]
    if type(size) is not int or size != len(view) - TAIL.size - length:
        raise Damaged("it is cut short")
    if type(fields[4]) is not dict:
        raise Damaged("its description cannot be read")
    if not checked and zlib.crc32(view[:size]) != fields[3]:
        raise Damaged("its checksum is wrong")
    return Entry(view[:size], fields[4])
