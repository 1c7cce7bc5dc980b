"""Authenticated connections between the processes of a run, which share a secret key.

Before either end accepts data, both prove that they know the key, by an HMAC of a random number from the other end.
Data is not encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
import stat
import struct
from contextlib import suppress

from cedar.core.errors import CedarError

KEY = 32  # bytes of a key
_PROOF = 32
_HANDSHAKE_SECONDS = 10.0  # time limit for a peer to prove that it knows the key
_MAX_FRAME_BYTES = 1 << 28  # maximum bytes of a frame


class RefusedConnection(ConnectionError):
    """The other end did not prove that it knows the key."""


def listen(host: str, port: int = 0) -> socket.socket:
    """Return a socket that listens at this address only."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=128)


def admit(connection: socket.socket, key: bytes) -> socket.socket:
    """Authenticate an accepted connection and return it; close it on failure.

    Raises:
        RefusedConnection: the other end does not know the key.
        OSError: the other end closed the connection, or did not answer in time.
    """
    try:
        _ready(connection, _HANDSHAKE_SECONDS)
        ours = secrets.token_bytes(KEY)
        connection.sendall(ours)
        answer = receive_exactly(connection, KEY + _PROOF)
        theirs, proof = answer[:KEY], answer[KEY:]
        if not hmac.compare_digest(proof, _proof(key, b"dials", ours, theirs)):
            raise RefusedConnection("refused a connection from a process without this run's key")
        connection.sendall(_proof(key, b"listens", theirs, ours))
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection


def dial(host: str, port: int, key: bytes, seconds: float = 60.0) -> socket.socket:
    """Connect to a listening process, and authenticate both ends.

    Raises:
        RefusedConnection: the two ends have different keys.
        OSError: the connection cannot be established.
    """
    connection = socket.create_connection((host, port), timeout=seconds)
    try:
        _ready(connection, seconds)
        theirs, ours = receive_exactly(connection, KEY), secrets.token_bytes(KEY)
        connection.sendall(ours + _proof(key, b"dials", theirs, ours))
        try:
            proof = receive_exactly(connection, _PROOF)
        except ConnectionError as error:
            raise RefusedConnection("the other process rejected this key") from error
        if not hmac.compare_digest(proof, _proof(key, b"listens", ours, theirs)):
            raise RefusedConnection("the other process does not have this run's key")
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection


def send_frame(connection: socket.socket, content: bytes) -> None:
    """Send bytes with a length prefix."""
    connection.sendall(struct.pack("<I", len(content)) + content)


def receive_frame(connection: socket.socket) -> bytes:
    """Receive the bytes that one ``send_frame`` call sent."""
    (length,) = struct.unpack("<I", receive_exactly(connection, 4))
    if length > _MAX_FRAME_BYTES:
        raise ConnectionError(f"a message of {length} bytes exceeds the limit of {_MAX_FRAME_BYTES} bytes")
    return receive_exactly(connection, length)


def receive_exactly(connection: socket.socket, count: int) -> bytes:
    """Receive ``count`` bytes."""
    received = bytearray(count)
    receive_into(connection, memoryview(received))
    return bytes(received)


def receive_into(connection: socket.socket, buffer: memoryview) -> None:
    """Receive bytes until the buffer is full."""
    while buffer:
        count = connection.recv_into(buffer)
        if not count:
            raise ConnectionError("the other end has closed the connection")
        buffer = buffer[count:]


def shut(connection: socket.socket) -> None:
    """Shut down and close a connection, so that blocked reads and writes end."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def write_key(path: str, key: bytes) -> None:
    """Write a key to a file that only this user may read."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(key.hex())


def read_key(path: str) -> bytes:
    """Read the key from a file."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), encoding="ascii") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.getuid() or status.st_mode & 0o077 or not stat.S_ISREG(status.st_mode):
                raise CedarError(f"{path} is accessible to other users", fix="remove it, and start the run again")
            key = bytes.fromhex(file.read(2 * KEY + 1))
    except (OSError, ValueError) as error:
        raise CedarError(
            f"the key {path} cannot be read: {error}",
            fix="use the run.folder of a run in progress: its first machine writes the key there",
        ) from error
    if len(key) != KEY:
        raise CedarError(f"{path} does not contain a key", fix="remove it, and start the run again")
    return key


def _ready(connection: socket.socket, seconds: float) -> None:
    connection.settimeout(seconds)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _proof(key: bytes, side: bytes, asked: bytes, own: bytes) -> bytes:
    return hmac.digest(key, side + asked + own, hashlib.sha256)
