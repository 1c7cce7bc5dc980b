"""The store of a run, in a process of its own: it outlives workers, and ends with the one who started it.

It listens at one address, and answers those who hold the run's key. Questions and answers are frames of JSON.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from cedar.errors import CedarError
from cedar.trainers.common import links

_LOOK = 0.2
_START = 60.0  # seconds


def start(host: str, port: int, key: bytes) -> tuple[Any, int]:
    """The process, and the port where the store listens.

    Args:
        host: an address of this machine.
        port: 0 for any.
        key: of the run.

    Raises:
        CedarError: the port is taken, or the host is not this one.
    """
    try:
        listener = links.listen(host, port)
    except OSError as error:
        raise CedarError(
            f"no store can listen at {host}:{port}: {error.strerror}", fix="give another HOST:PORT to --listen"
        ) from error
    with listener:
        context = multiprocessing.get_context("fork")
        process = context.Process(target=_serve, args=(listener, key, os.getpid()), name="store")
        process.start()
        return process, int(listener.getsockname()[1])


def _serve(listener: socket.socket, key: bytes, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    held = _Held()
    threading.Thread(target=_accept, args=(listener, key, held), name="store", daemon=True).start()
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os._exit(0)


def _accept(listener: socket.socket, key: bytes, held: _Held) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_answer, args=(connection, key, held), daemon=True).start()


def _answer(connection: socket.socket, key: bytes, held: _Held) -> None:
    with suppress(OSError, ValueError, TypeError, KeyError), links.admit(connection, key):  # a bad question ends it
        while True:
            what, *arguments = json.loads(links.receive_frame(connection))
            links.send_frame(connection, json.dumps(held.asked[what](*arguments)).encode())


class _Held:
    """Values by name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, str] = {}
        self.asked: dict[str, Callable[..., Any]] = {
            "set": self._set, "get": self._get, "add": self._add, "check": self._check, "compare": self._compare,
            "delete": self._delete,
        }  # fmt: skip

    def _set(self, key: str, value: str) -> None:
        self._values[key] = value

    def _get(self, keys: list[str]) -> list[str | None]:
        return [self._values.get(key) for key in keys]

    def _add(self, key: str, amount: int) -> int:
        with self._lock:
            total = int(self._values.get(key, "0")) + amount
            if amount:
                self._values[key] = str(total)
            return total

    def _check(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)

    def _compare(self, key: str, expected: str, wanted: str) -> str:
        with self._lock:
            if self._values.get(key, "") == expected:
                self._values[key] = wanted
            return self._values.get(key, "")

    def _delete(self, key: str) -> bool:
        return self._values.pop(key, None) is not None


class Client:
    """A connection to the store; threads may share it. What fails is a RuntimeError, as of torch's stores."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._lock = connection, threading.Lock()
        weakref.finalize(self, connection.close)
        self.host: str = connection.getsockname()[0]  # this machine's address on the way to the store

    def _ask(self, *question: Any) -> Any:
        try:
            with self._lock:
                links.send_frame(self._connection, json.dumps(question).encode())
                return json.loads(links.receive_frame(self._connection))
        except OSError as error:
            raise RuntimeError(f"the connection to the store is lost: {error}") from error

    def set(self, key: str, value: str, /) -> None:
        self._ask("set", key, value)

    def get(self, key: str, /) -> bytes:
        return self.multi_get([key])[0]

    def add(self, key: str, amount: int, /) -> int:
        return int(self._ask("add", key, amount))

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        found = self._ask("get", keys)
        if None in found:
            raise RuntimeError(f"the store has no {keys[found.index(None)]}")
        return [value.encode() for value in found]

    def check(self, keys: list[str], /) -> bool:
        return bool(self._ask("check", keys))

    def compare_set(self, key: str, expected: str, wanted: str, /) -> bytes:
        return str(self._ask("compare", key, expected, wanted)).encode()

    def delete_key(self, key: str, /) -> bool:
        return bool(self._ask("delete", key))


def connect(host: str, port: int, key: bytes, seconds: float = 60.0) -> Client:
    """A client.

    Raises:
        CedarError: nobody listens there, or with another key.
    """
    try:
        return Client(links.dial(host, port, key, seconds))
    except OSError as error:
        raise CedarError(
            f"no run can be reached at {host}:{port}: {error}",
            fix="give the address that the first supervisor printed, and its run.folder",
        ) from error
