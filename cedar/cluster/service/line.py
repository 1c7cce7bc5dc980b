"""Line: a rank's connection to a service, for coordination with other ranks."""

from __future__ import annotations

import json
import socket
import ssl
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cedar.cluster.dask.clients import ask, reached
from cedar.cluster.dask.limits import seconds
from cedar.cluster.service.ranks import keep_alive, listening
from cedar.core.errors import PipelineError

_CHUNK = 1 << 16
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_addresses: dict[str, tuple[str, int]] = {}  # host and port at which a service accepts ranks, by scheduler address


class ServiceLine:
    """A connection to a service's scheduler process, separate from Dask's connections but with the same keys.

    Args:
        service: the service's address, or a Dask client.

    Raises:
        PipelineError: the scheduler is not a service.
        WorkerError: the scheduler does not answer.
        OSError: the service does not accept the connection.
    """

    def __init__(self, service: Any) -> None:
        self._socket = _connected(service)
        self._socket.settimeout(0)
        self._limit = seconds("scheduler-silent")
        self._incomplete = b""
        self._heard: deque[Any] = deque()
        self.close = weakref.finalize(self, self._socket.close)

    def send(self, message: Any) -> None:
        """Send a message without waiting for an answer."""
        data = json.dumps(message).encode() + b"\n"
        try:
            sent = self._socket.send(data)
        except _WOULD_BLOCK:
            sent = 0
        if sent < len(data):
            with self._waiting():
                self._socket.sendall(data[sent:])

    def heard(self) -> deque[Any]:
        """Return the queue of received messages without waiting. The caller removes the messages that it handles.

        Raises:
            ConnectionError: the service is gone, or closed the connection with an error.
        """
        if not self._heard:
            self._receive()
        return self._heard

    def ask(self, message: Any, answer: str) -> Any:
        """Send a message, and wait for the message with the key ``answer``; return its value.

        Raises:
            ConnectionError: see ``heard``.
            TimeoutError: no answer arrived in time.
        """
        self.send(message)
        with self._waiting():
            while True:
                for each in self._heard:
                    if answer in each:
                        self._heard.remove(each)
                        return each[answer]
                self._receive()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self._socket.settimeout(self._limit)
        try:
            yield
        finally:
            self._socket.settimeout(0)

    def _receive(self) -> None:
        try:
            data = self._socket.recv(_CHUNK)
        except _WOULD_BLOCK:
            return
        if not data:
            raise ConnectionError("the service has closed the connection")
        *lines, self._incomplete = (self._incomplete + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "error" in message:
                raise ConnectionError(message["error"])
            self._heard.append(message)


def is_service(where: Any) -> bool:
    """Return whether the scheduler of an address or Dask client is a service, through which ranks can coordinate.

    Raises:
        WorkerError: the scheduler does not answer.
    """
    try:
        _rank_address(where)
    except PipelineError:
        return False
    return True


def _rank_address(where: Any) -> tuple[str, int]:
    client = reached(where)
    address = client.scheduler.address
    if address not in _addresses:
        listener = ask(client, client.run_on_scheduler, listening)
        if listener is None:
            raise PipelineError(
                f"the Dask scheduler at {address} is not a service, and ranks cannot meet there",
                fix="start one with `cedar service start`, or turn it into one with cedar.Service.on(client)",
            )
        _addresses[address] = tuple(listener)
    return _addresses[address]


def _connected(where: Any) -> socket.socket:
    limit = seconds("connect")
    place, client = _rank_address(where), reached(where)
    try:
        plain = socket.create_connection(place, limit)
    except OSError:  # the service may have been replaced
        _addresses.pop(client.scheduler.address, None)
        plain = socket.create_connection(_rank_address(where), limit)
    keep_alive(plain)
    if not client.scheduler.address.startswith("tls://"):
        return plain
    try:
        return client.security.get_connection_args("client")["ssl_context"].wrap_socket(plain)  # type: ignore[no-any-return]
    except OSError:  # another program may use the port by now: ask the service for its port next time
        _addresses.pop(client.scheduler.address, None)
        plain.close()
        raise
