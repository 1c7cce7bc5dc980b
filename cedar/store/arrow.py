"""Arrow in entries: written in pieces that can be mapped, and checked in full when it is read.

A stranger may have written it. pyarrow checks how messages are built, but believes offsets, lengths and sizes within
them: an array whose offsets are beyond its data shows whatever is after it in memory, and a few bytes can ask for any
amount of it.
"""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa

from cedar.store.entry import Damaged, Entry, Write

PAGE = 64
_HEADERS = {2: "dictionary batch", 3: "record batch"}


def write_batch(sink: Any, batch: pa.RecordBatch) -> list[int]:
    """Write a stream of one batch at the next multiple of ``PAGE``; where it begins and ends."""
    start = -(-sink.tell() // PAGE) * PAGE
    sink.write(b"\0" * (start - sink.tell()))
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return [start, sink.tell()]


def table_body(table: pa.Table) -> Write:
    """Writes a table whose columns come back in one piece each."""

    def write(sink: Any) -> dict[str, Any]:
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.combine_chunks())
        return {}

    return write


def table_of(entry: Entry) -> pa.Table:
    """The table of an entry; its arrays are views of the body.

    Raises:
        Damaged: it is not a table.
    """
    try:
        buffer = pa.py_buffer(entry.body)
        refuse_compressed(buffer)
        with pa.ipc.open_stream(buffer) as reader:
            return checked(reader.read_all())
    except (OSError, ValueError, pa.ArrowException) as error:
        raise Damaged(f"it cannot be decoded: {' '.join(str(error).split())[:200]}") from error


def read_batch(buffer: pa.Buffer) -> pa.RecordBatch:
    """The one record batch of an IPC stream; its arrays are views of ``buffer``.

    Raises:
        ValueError: there is none, or another; its buffers are compressed (a stream that is kept never is, and a few
            bytes could become any number); offsets, lengths or strings in it are wrong.
    """
    refuse_compressed(buffer)
    with pa.ipc.open_stream(buffer) as reader:
        batches = list(reader)
    if len(batches) != 1:
        raise ValueError(f"it has {len(batches)} record batches")
    return checked(batches[0])


def refuse_compressed(stream: pa.Buffer) -> None:
    """Raises ValueError if buffers of an IPC stream are compressed."""
    for message in pa.ipc.MessageReader.open_stream(stream):
        if _compressed(message.metadata):
            raise ValueError("its buffers are compressed")


def checked(batch: Any) -> Any:
    """A batch, a table or an array in which every offset, length, index and text is right.

    Raises:
        ValueError: some are not.
    """
    batch.validate(full=True)
    return batch


def _compressed(metadata: pa.Buffer) -> bool:
    """Whether a message says how its buffers are compressed: a field of its flatbuffer (Arrow's Message.fbs)."""
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
    """Where a field of a flatbuffer's table lies; None if it has its default."""
    vtable = table - struct.unpack_from("<i", raw, table)[0]
    place = 4 + 2 * number
    if vtable < 0 or place >= struct.unpack_from("<H", raw, vtable)[0]:
        return None
    offset = struct.unpack_from("<H", raw, vtable + place)[0]
    return table + offset if offset else None


def _u32(raw: memoryview, place: int) -> int:
    number: int = struct.unpack_from("<I", raw, place)[0]
    return number
