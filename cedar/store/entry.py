"""A store entry: one value as bytes. It has a body, JSON that describes it, and checksums of both.

The body comes first, so that it can be memory-mapped. The JSON has the entry's name, the versions that wrote it, the
size and CRC-32 of the body, and a description of the body. The length and CRC-32 of the JSON and a magic number follow.
Checksums detect damage, not malicious changes, so readers also validate the description against the body.

Arrow data in a body are laid out for memory maps. pyarrow checks the structure of IPC messages, but trusts the offsets,
lengths and sizes in them, so readers validate these too. Invalid offsets would expose other memory, and an invalid
size could request any amount of memory.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

FORMAT = 7
MAGIC = b"CEDARKEP"
TAIL = struct.Struct("<QI8s")
PAGE = 64  # Arrow streams in a body begin at multiples of this
_HEADERS = {2: "dictionary batch", 3: "record batch"}  # kinds of messages with buffers

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


# ---- Arrow data ------------------------------------------------------------------------------------------------------


def write_batch(sink: Any, batch: pa.RecordBatch) -> list[int]:
    """Write a stream of one batch at the next multiple of ``PAGE``, and return its start and end."""
    start = -(-sink.tell() // PAGE) * PAGE
    sink.write(b"\0" * (start - sink.tell()))
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return [start, sink.tell()]


def table_body(table: pa.Table) -> Write:
    """Return a function that writes a table so that each column is read back as one chunk."""

    def write(sink: Any) -> dict[str, Any]:
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.combine_chunks())
        return {}

    return write


def table_of(entry: Entry) -> pa.Table:
    """Return the table of an entry; its arrays are views of the body.

    Raises:
        Damaged: the body is not a valid table.
    """
    try:
        buffer = pa.py_buffer(entry.body)
        refuse_compressed(buffer)
        with pa.ipc.open_stream(buffer) as reader:
            table = reader.read_all()
        table.validate(full=True)
        return table
    except (OSError, ValueError, pa.ArrowException) as error:
        raise Damaged(f"it cannot be decoded: {' '.join(str(error).split())[:200]}") from error


def read_batch(buffer: pa.Buffer) -> pa.RecordBatch:
    """Return the only record batch of an IPC stream; its arrays are views of ``buffer``.

    Raises:
        ValueError: the number of batches is not 1; buffers are compressed (cedar never writes these, and a few bytes
            could decompress to any size); or offsets, lengths or strings are invalid.
    """
    refuse_compressed(buffer)
    with pa.ipc.open_stream(buffer) as reader:
        batches = list(reader)
    if len(batches) != 1:
        raise ValueError(f"it has {len(batches)} record batches")
    batches[0].validate(full=True)
    return batches[0]


def refuse_compressed(stream: pa.Buffer) -> None:
    """Raise ValueError if buffers of an IPC stream are compressed."""
    for message in pa.ipc.MessageReader.open_stream(stream):
        if _compressed(message.metadata):
            raise ValueError("its buffers are compressed")


def _compressed(metadata: pa.Buffer) -> bool:
    """Whether a message declares compressed buffers, in a field of its flatbuffer (see Arrow's Message.fbs)."""
    raw = memoryview(metadata)
    try:
        message = _u32(raw, 0)
        kind, header = _field(raw, message, 1), _field(raw, message, 2)
        if kind is None or header is None or raw[kind] not in _HEADERS:
            return False
        table = header + _u32(raw, header)
        if _HEADERS[raw[kind]] == "dictionary batch":
            data = _field(raw, table, 1)
            if data is None:
                return False
            table = data + _u32(raw, data)
        return _field(raw, table, 3) is not None
    except (struct.error, IndexError) as error:
        raise ValueError("a message is damaged") from error


def _field(raw: memoryview, table: int, number: int) -> int | None:
    """Return the position of a field in a flatbuffer table; None if the field has its default value."""
    vtable = table - struct.unpack_from("<i", raw, table)[0]
    place = 4 + 2 * number
    if vtable < 0 or place >= struct.unpack_from("<H", raw, vtable)[0]:
        return None
    offset = struct.unpack_from("<H", raw, vtable + place)[0]
    return table + offset if offset else None


def _u32(raw: memoryview, place: int) -> int:
    number: int = struct.unpack_from("<I", raw, place)[0]
    return number
