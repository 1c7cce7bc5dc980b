"""Wire: messages between two processes, pickle 5 with its large buffers apart, so that nothing copies them between."""

from __future__ import annotations

import io
import pickle
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Any

import cloudpickle
import pyarrow as pa

_APART = 1 << 14  # bytes; smaller buffers stay in the pickle
_SLACK = 1 << 12  # bytes beyond its own that an Arrow array may bring along before it is copied out of them
_BUFFER = 1 << 20  # bytes that may lie in the socket
_MOST = 512  # buffers in one system call, below every system's limit
_HEAD = struct.Struct("<IQ")


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """By value what is of ``__main__``, and no more of an Arrow array than its own rows."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, pa.Array):
            return _compact(obj).__reduce_ex__(5)
        return super().reducer_override(obj)


def _compact(array: pa.Array) -> pa.Array:
    """A slice is pickled with all of the array it is cut from: copy it out first where that is much more."""
    own = array.nbytes
    return pa.concat_arrays([array]) if array.get_total_buffer_size() > own + own // 4 + _SLACK else array


def encode(message: Any) -> list[memoryview]:
    """The parts of a message: pickle first. They refer to the message's arrays, which must not change until sent.

    Raises:
        Exception: whatever an object that cannot be pickled raises.
    """
    apart: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _APART:
            return True
        apart.append(raw)
        return False

    file = io.BytesIO()
    _Pickler(file, protocol=5, buffer_callback=keep).dump(message)
    return [file.getbuffer(), *apart]


def decode(parts: Sequence[Any]) -> Any:
    """The message; its arrays lie in the parts."""
    return pickle.loads(parts[0], buffers=parts[1:])  # noqa: S301 - from a process of ours, never from a file


class Wire:
    """One end of a pair of connected sockets; any thread may send, one receives.

    Example:
        >>> import socket
        >>> here, there = (Wire(end) for end in socket.socketpair())
        >>> here.send(encode({"rows": [1, 2]}))
        >>> decode(there.receive())
        {'rows': [1, 2]}
        >>> here.close(), there.close()
        (None, None)
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.Lock()
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, _BUFFER)

    def send(self, parts: Sequence[memoryview]) -> None:
        """All parts, as one message.

        Raises:
            OSError: the other end is gone.
        """
        sizes = [part.nbytes for part in parts]
        head = _HEAD.pack(len(parts), sizes[0]) + struct.pack(f"<{len(parts) - 1}Q", *sizes[1:])
        left = [memoryview(head), *parts]
        with self._sending:
            while left:
                sent = self._socket.sendmsg(left[:_MOST])
                while left and sent >= left[0].nbytes:
                    sent -= left.pop(0).nbytes
                if sent:
                    left[0] = left[0][sent:]

    def receive(self) -> list[Any]:
        """The parts of the next message.

        Raises:
            EOFError: the other end is gone.
            OSError: this one is.
        """
        count, first = _HEAD.unpack(self._exactly(memoryview(bytearray(_HEAD.size))))
        body = self._exactly(memoryview(bytearray(8 * (count - 1) + first)))
        sizes = struct.unpack_from(f"<{count - 1}Q", body)
        # Arrow's allocator aligns, does not fill with zeros, and uses pages again.
        return [body[8 * (count - 1) :], *(self._exactly(memoryview(pa.allocate_buffer(size))) for size in sizes)]

    def _exactly(self, space: memoryview) -> memoryview:
        filled = 0
        while filled < space.nbytes:
            got = self._socket.recv_into(space[filled:])
            if not got:
                raise EOFError("the other process is gone")
            filled += got
        return space

    def ended(self) -> bool:
        """Whether the other end is gone, and nothing of it is left to receive; does not wait."""
        try:
            return not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        """The other end reads the end of file."""
        self._socket.close()
