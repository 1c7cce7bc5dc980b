"""Wire: sends messages between two processes. Large buffers are pickled out of band, which avoids copies."""

from __future__ import annotations

import array
import io
import pickle
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Sequence
from types import FunctionType
from typing import Any

import cloudpickle
import pyarrow as pa

from cedar.core.block import Block
from cedar.core.buffers import MIN_SHARED_BYTES
from cedar.core.cursor import Keys
from cedar.executors.worker.arena import Inbox, Outbox, warn

_MIN_OUT_OF_BAND_BYTES = 1 << 14  # smaller buffers are stored inside the pickle
_PACKAGES_BY_NAME = frozenset(("cedar", "numpy", "pyarrow"))  # packages whose classes are pickled by name
_MAX_UNUSED_BYTES = 1 << 12  # an Arrow slice whose buffers have more unused bytes is copied before it is pickled
_SOCKET_BUFFER_BYTES = 1 << 20  # size of the socket's send and receive buffers
_MAX_BUFFERS_PER_CALL = 512  # maximum number of buffers per system call, below every system's limit
_INLINE = -1  # in place of an offset: the buffer is sent through the socket
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
# The fields are: bytes of the pickle, number of buffers, number of freed offsets, number of the arena that the sender
# writes to, and number and size of the arena that it reads from.
_HEADER = struct.Struct("<QIIIIQ")


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles objects of ``__main__`` by value, and of an Arrow slice only its own rows.

    Blocks, keys and classes of ``_PACKAGES_BY_NAME`` are pickled without cloudpickle's slower checks.
    """

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (type, FunctionType)):
            # cloudpickle would search all modules to find out whether the receiver can import the object by name.
            by_name = obj.__module__.partition(".")[0] in _PACKAGES_BY_NAME and "<" not in obj.__qualname__
            return NotImplemented if by_name else super().reducer_override(obj)
        if isinstance(obj, pa.Array):
            return _compact(obj).__reduce_ex__(5)
        if isinstance(obj, (Block, Keys)):
            return type(obj), tuple(map(obj.__getattribute__, obj.__slots__))
        return NotImplemented


def _compact(array: pa.Array) -> pa.Array:
    """Copy a slice that is much smaller than its buffers, because Arrow pickles the whole buffers of a slice."""
    own = array.nbytes
    return pa.concat_arrays([array]) if array.get_total_buffer_size() > own + own // 4 + _MAX_UNUSED_BYTES else array


def encode(message: Any) -> list[memoryview]:
    """Return the pickle of the message, followed by its large buffers, which must not change until they are sent.

    Raises:
        Exception: an object in the message cannot be pickled; the error is that of its ``__reduce__`` or type.
    """
    large_buffers: list[memoryview] = []

    def stays_in_pickle(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _MIN_OUT_OF_BAND_BYTES:
            return True
        large_buffers.append(raw)
        return False

    file = io.BytesIO()
    _Pickler(file, protocol=5, buffer_callback=stays_in_pickle).dump(message)
    return [file.getbuffer(), *large_buffers]


def decode(parts: Sequence[Any]) -> Any:
    """Return the message of these parts. Its arrays are views of the parts."""
    return pickle.loads(parts[0], buffers=parts[1:])  # noqa: S301 - from our own process, never from a file


class Wire:
    """One end of a pair of connected sockets. Any thread may send, but only one may receive.

    Large buffers are written to the receiver's arena, and stay there until nothing references them. If the arena is
    full, they are sent through the socket, so a sender never waits for space in the arena.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.RLock()
        self._shares_memory = sys.platform == "linux"
        self._sharing_error: Exception | None = None  # error of shared memory that was not reported yet
        self._inbox: Inbox | None = None
        self._inboxes: dict[int, Inbox] = {}  # by number; the peer may still write to earlier arenas
        self._outbox: Outbox | None = None
        self._updates: deque[Outbox | tuple[int, Sequence[int]]] = deque()  # new arenas, or (arena, freed offsets)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER_BYTES)

    def send(self, parts: Sequence[memoryview]) -> None:
        """Send all parts as one message, after writing large parts to the shared arena.

        Raises:
            OSError: the other process closed its end.
        """
        with self._sending:
            self._apply_updates()
            places = [self._put_in_arena(part) for part in parts[1:]]
            inbox = self._inbox = self._arena_to_offer(self._inbox)
            file = -1 if inbox is None else inbox.file
            freed = [] if inbox is None else [inbox.released.popleft() for _ in range(len(inbox.released))]
            head = _HEADER.pack(
                parts[0].nbytes, len(places), len(freed), 0 if self._outbox is None else self._outbox.number,
                0 if inbox is None else inbox.number, 0 if inbox is None or file < 0 else inbox.capacity,
            )  # fmt: skip
            numbers = struct.pack(f"<{2 * len(places) + len(freed)}q", *(p.nbytes for p in parts[1:]), *places, *freed)
            inline = [part for part, place in zip(parts[1:], places, strict=True) if place == _INLINE]
            self._send_all([memoryview(head + numbers), parts[0], *inline], file)
            if inbox is not None:
                inbox.close()
            error, self._sharing_error = self._sharing_error, None
        if error is not None:
            warn(error)

    def reserve(self, size: int) -> memoryview | None:
        """Return shared memory for an array, so that sending it copies nothing; None if there is none or it is full."""
        with self._sending:
            self._apply_updates()
            return None if self._outbox is None else self._outbox.reserve(size)

    @property
    def sending(self) -> bool:
        """Whether this thread is inside ``send``, where a finalizer may run, which must not start another message."""
        return bool(self._sending._is_owned())  # type: ignore[attr-defined]

    def _send_all(self, left: list[memoryview], file: int) -> None:
        """Send all bytes. If ``file`` is not negative, send that file descriptor together with the first bytes."""
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))] if file >= 0 else []
        while left:
            sent = self._socket.sendmsg(left[:_MAX_BUFFERS_PER_CALL], ancillary)
            ancillary = []
            while left and sent >= left[0].nbytes:
                sent -= left.pop(0).nbytes
            if sent:
                left[0] = left[0][sent:]

    def _apply_updates(self) -> None:
        """Apply the peer's updates, which are new arenas to write to, and offsets that the peer has freed."""
        while self._updates:
            update = self._updates.popleft()
            if isinstance(update, Outbox):
                self._drop_outbox()
                self._outbox = update
            elif self._outbox is not None and update[0] == self._outbox.number:
                self._outbox.free(update[1])

    def _put_in_arena(self, part: memoryview) -> int:
        """Write a large part to the arena and return its offset. Return ``_INLINE`` if the socket must send it."""
        if self._outbox is None or part.nbytes < MIN_SHARED_BYTES:
            return _INLINE
        try:
            place = self._outbox.put(part)
        except OSError as error:
            place, self._sharing_error = None, error
        return _INLINE if place is None else place

    def _arena_to_offer(self, inbox: Inbox | None) -> Inbox | None:
        """Return the arena that the peer should write to. If there is none or it is retired, create another."""
        if not self._shares_memory or (inbox is not None and not inbox.retired):
            return inbox
        try:
            new = Inbox(1 if inbox is None else inbox.number + 1)
        except (OSError, ValueError, MemoryError) as error:
            self._shares_memory, self._sharing_error = False, error
            return inbox
        self._inboxes[new.number] = new
        return new

    def receive(self) -> list[Any]:
        """Wait for the next message and return its parts.

        Raises:
            EOFError: the other process closed its end.
            OSError: this end is closed.
        """
        head, files = self._receive_header()
        first, count, free, written, number, capacity = _HEADER.unpack(head)
        if files:
            self._updates.append(Outbox(number, files[0], capacity))
        body = self._receive_into(memoryview(bytearray(16 * count + 8 * free + first)))
        numbers = struct.unpack_from(f"<{2 * count + free}q", body)
        if free:
            self._updates.append((number, numbers[2 * count :]))
        for old in [n for n in list(self._inboxes) if n < written]:
            self._inboxes.pop(old, None)
        parts: list[Any] = [body[16 * count + 8 * free :]]
        for size, place in zip(numbers[:count], numbers[count : 2 * count], strict=True):
            if place == _INLINE:
                # Arrow's allocator aligns memory, does not zero it, and reuses pages.
                parts.append(self._receive_into(memoryview(pa.allocate_buffer(size))))
            else:
                parts.append(self._inboxes[written].view(place, size))
        return parts

    def _receive_header(self) -> tuple[memoryview, array.array[int]]:
        """Receive a message's header, and the file descriptor sent with it, if any."""
        space = memoryview(bytearray(_HEADER.size))
        files = array.array("i")
        got, ancillary, _, _ = self._socket.recvmsg_into([space], socket.CMSG_SPACE(files.itemsize), _CLOSE_ON_EXEC)
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                files.frombytes(data[: files.itemsize])
        if not got:
            raise EOFError("the other process is gone")
        self._receive_into(space[got:])
        return space, files

    def _receive_into(self, space: memoryview) -> memoryview:
        filled = 0
        while filled < space.nbytes:
            got = self._socket.recv_into(space[filled:])
            if not got:
                raise EOFError("the other process is gone")
            filled += got
        return space

    def ended(self) -> bool:
        """Return, without waiting, whether the other process closed its end and no data is left to receive."""
        try:
            return not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end, so that the other process reads end of file. Received buffers stay valid."""
        self._socket.close()
        self._drop_outbox()
        for update in self._updates:
            if isinstance(update, Outbox):
                update.close()
        self._updates.clear()

    def _drop_outbox(self) -> None:
        if self._outbox is not None:
            self._outbox.close()
            self._outbox = None
