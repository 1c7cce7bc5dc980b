"""Arrow data in store entries. Writers lay the data out for memory maps; readers validate all of it.

Another user may have written an entry. pyarrow checks the structure of IPC messages, but trusts the offsets, lengths
and sizes in them. Invalid offsets would expose other memory, and an invalid size could request any amount of memory.
"""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa

from cedar.store.entry import Damaged, Entry, Write

PAGE = 64
_HEADERS = {2: "dictionary batch", 3: "record batch"}


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
            return checked(reader.read_all())
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
    return checked(batches[0])


def refuse_compressed(stream: pa.Buffer) -> None:
    """Raise ValueError if buffers of an IPC stream are compressed."""
    for message in pa.ipc.MessageReader.open_stream(stream):
        if _compressed(message.metadata):
            raise ValueError("its buffers are compressed")


def checked(batch: Any) -> Any:
    """Return a batch, table or array after checking all of its offsets, lengths, indices and strings.

    Raises:
        ValueError: any of these is invalid.
    """
    batch.validate(full=True)
    return batch


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
