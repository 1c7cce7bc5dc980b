"""Arrow IPC that a stranger may have written: what it says of itself is held against what is there, before it is used.

pyarrow checks how messages are built, but believes offsets, lengths and sizes within them: an array whose offsets lie
beyond its data shows whatever lies behind it in memory, and a few bytes can ask for any amount of it.
"""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa

_HEADERS = {2: "dictionary batch", 3: "record batch"}


def read_batch(buffer: pa.Buffer) -> pa.RecordBatch:
    """The one record batch of an IPC stream; its arrays are views of ``buffer``.

    Raises:
        ValueError: there is none, or another; its buffers are compressed (a stream that is kept never is, and a few
            bytes could become any number); offsets, lengths or texts in it are wrong.
    """
    for message in pa.ipc.MessageReader.open_stream(buffer):
        if _compressed(message.metadata):
            raise ValueError("its buffers are compressed")
    with pa.ipc.open_stream(buffer) as reader:
        batches = list(reader)
    if len(batches) != 1:
        raise ValueError(f"it has {len(batches)} record batches")
    return checked(batches[0])


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
    """Where a field of a flatbuffer's table lies; None where it has its default."""
    vtable = table - struct.unpack_from("<i", raw, table)[0]
    place = 4 + 2 * number
    if vtable < 0 or place >= struct.unpack_from("<H", raw, vtable)[0]:
        return None
    offset = struct.unpack_from("<H", raw, vtable + place)[0]
    return table + offset if offset else None


def _u32(raw: memoryview, place: int) -> int:
    found: int = struct.unpack_from("<I", raw, place)[0]
    return found
