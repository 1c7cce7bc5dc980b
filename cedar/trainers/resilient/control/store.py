"""The key-value store of a run. It has its own process, which ends when the process that started it ends.

The store listens at one address and serves clients that have the run's key. Requests and replies are JSON frames.
"""

from __future__ import annotations

import ipaddress
import json
import multiprocessing
import os
import signal
import socket
import threading
import time
import weakref
from contextlib import suppress
from typing import Any

from cedar.core.errors import CedarError
from cedar.trainers.common import links

_CHECK_INTERVAL = 0.2
_LAST_PORT = 65535


def start(host: str, port: int, key: bytes) -> tuple[Any, int]:
    """Start a store; return its process and port. ``host``: an address of this machine. ``port``: 0: any free port."""
    check_port(port)
    try:
        listener = links.listen(host, port)
    except OSError as error:
        raise CedarError(
            f"cannot listen on {host}:{port}: {error.strerror}", fix="pass another HOST:PORT to --listen"
        ) from error
    with listener:
        if ipaddress.ip_address(listener.getsockname()[0]).is_unspecified:  # workers would publish loopback
            raise CedarError(
                f"cannot listen on {host}: other machines need one address to connect to",
                fix="pass an address of this machine to --listen",
            )
        context = multiprocessing.get_context("fork")
        process = context.Process(target=_serve, args=(listener, key, os.getpid()), name="store")
        process.start()
        return process, int(listener.getsockname()[1])


def check_port(port: int) -> None:
    if not 0 <= port <= _LAST_PORT:
        raise CedarError(f"{port} is not a port", fix=f"give a number up to {_LAST_PORT}")


def _serve(listener: socket.socket, key: bytes, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    values = Values()
    threading.Thread(target=_accept, args=(listener, key, values), name="store", daemon=True).start()
    while os.getppid() == parent:
        time.sleep(_CHECK_INTERVAL)
    os._exit(0)


def _accept(listener: socket.socket, key: bytes, values: Values) -> None:
    while True:
        connection = None
        try:
            connection, _ = listener.accept()
            threading.Thread(target=_answer, args=(connection, key, values), daemon=True).start()
        except (OSError, RuntimeError):  # the client has gone, or there are too many open files or threads
            if connection is not None:
                connection.close()
            time.sleep(_CHECK_INTERVAL)


def _answer(connection: socket.socket, key: bytes, values: Values) -> None:
    with suppress(OSError, ValueError, TypeError, KeyError), links.admit(connection, key):  # closes after bad requests
        while True:
            method, *arguments = json.loads(links.receive_frame(connection))
            links.send_frame(connection, json.dumps(values.call(method, *arguments)).encode())


class Values:
    """The keys of a store and their values, which are strings. Exists only in the store's process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, str] = {}
        self._methods = {
            method.__name__: method for method in (self.put, self.get, self.put_if_absent, self.increment, self.delete)
        }  # fmt: skip

    def call(self, method: str, *arguments: Any) -> Any:
        """Run a method atomically."""
        with self._lock:
            return self._methods[method](*arguments)

    def put(self, key: str, value: str) -> None:
        self._values[key] = value

    def get(self, keys: list[str]) -> list[str] | None:
        return [self._values[key] for key in keys] if all(key in self._values for key in keys) else None

    def put_if_absent(self, key: str, value: str) -> str:
        return self._values.setdefault(key, value)

    def increment(self, key: str, more: int) -> int:
        total = int(self._values.get(key, "0")) + more
        if more:
            self._values[key] = str(total)
        return total

    def delete(self, keys: list[str]) -> None:
        for key in keys:
            self._values.pop(key, None)


class StoreLost(RuntimeError):
    """The connection to the store is lost."""


class Client:
    """A connection to the store; threads may share it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._lock = connection, threading.Lock()
        weakref.finalize(self, connection.close)
        self.host: str = connection.getsockname()[0]  # the address of this machine on the network to the store

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the store's ``Values``.

        Raises:
            StoreLost: the connection is lost.
        """
        try:
            with self._lock:
                links.send_frame(self._connection, json.dumps([method, *arguments]).encode())
                return json.loads(links.receive_frame(self._connection))
        except OSError as error:
            raise StoreLost(f"the connection to the store is lost: {error}") from error


def connect(host: str, port: int, key: bytes) -> Client:
    """Connect to a store."""
    check_port(port)
    try:
        return Client(links.dial(host, port, key))
    except OSError as error:
        raise CedarError(
            f"no run can be reached at {host}:{port}: {error}",
            fix="give the address that the first supervisor printed, and its run.folder",
        ) from error
