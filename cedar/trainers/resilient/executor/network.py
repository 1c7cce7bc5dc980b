"""A transport over sockets between processes.

Each worker has one thread per worker that it receives from, and one per worker that it sends to. At the end of a
generation, the transport closes its connections, which ends these threads.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from cedar.trainers.common import links
from cedar.trainers.resilient.control import protocol as keys
from cedar.trainers.resilient.control.board import Board
from cedar.trainers.resilient.executor.transport import Lost, Waiting
from cedar.trainers.resilient.schedule import Worker

_QUERY_INTERVAL = 0.002  # seconds between two queries for another worker's address
AHEAD = 2  # max messages to receive from each worker before ``receive`` is called


class SocketTransport:
    """Connects one worker to the others of its generation; ``transport`` describes the rules. ``board``: where workers
    publish their addresses; must be thread-safe. ``host``: the address to listen at.
    """

    def __init__(
        self, board: Board, host: str, key: bytes, members: Sequence[Worker], me: Worker, waiting: Waiting,
        generation: int,
    ) -> None:  # fmt: skip
        self.me, self.waiting = me, waiting
        self._out: dict[Worker, _WorkerThread] = {}
        self._in: dict[Worker, _WorkerThread] = {}
        self._closed = False
        self.board, self.key, self.generation = board, key, generation
        self._links: list[socket.socket] = []
        self._connections_from: dict[Worker, queue.SimpleQueue[socket.socket | None]] = {
            worker: queue.SimpleQueue() for worker in members
        }
        self._listener = links.listen(host)
        threading.Thread(target=self._accept, name="connections", daemon=True).start()
        board.put(keys.LISTENS(generation, me), list(self._listener.getsockname()[:2]))

    def send(self, to: Worker, message: torch.Tensor) -> None:
        if to not in self._out:
            self._out[to] = _WorkerThread(partial(self._open_sender, to), f"to {to}")
        self._out[to].orders.put(message.detach())

    def expect(self, source: Worker, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        if source not in self._in:
            self._in[source] = _WorkerThread(partial(self._open_receiver, source), f"from {source}")
        self._in[source].orders.put((shape, dtype))

    def receive(self, source: Worker) -> torch.Tensor:
        lane = self._in[source]
        arrived: list[Any] = []

        def ready(seconds: float) -> bool:
            try:
                arrived.append(lane.results.get(timeout=seconds))
            except queue.Empty:
                return self._closed or bool(self._failed_sends())
            return True

        self.waiting.until(ready, f"a message from {source}")
        if not arrived and self._closed:
            raise Lost(f"{self.me} has closed its connections")
        if not arrived:
            source, error = self._failed_sends()[0]
            arrived.append(error)
        if isinstance(arrived[0], BaseException):
            self.waiting.check()
            raise Lost(f"{self.me} lost the connection to {source}: {arrived[0]}") from arrived[0]
        message: torch.Tensor = arrived[0]
        return message

    def _failed_sends(self) -> list[tuple[Worker, Exception]]:
        """Return the workers to which messages could not be sent. They may wait forever, and this worker with them."""
        return [(to, lane.error) for to, lane in self._out.items() if lane.error is not None]

    def warm_up(self, others: Sequence[Worker]) -> None:
        """Exchange a message with each of these workers, to open the connections before they are needed."""
        for other in others:
            self.expect(other, (1,), torch.float32)
            self.send(other, torch.zeros(1))
        for other in others:
            self.receive(other)

    def close(self) -> None:
        """Close all connections, which ends the threads that wait for them."""
        self._closed = True
        for lane in (*self._out.values(), *self._in.values()):
            lane.close()
        links.shut(self._listener)
        for arrived in self._connections_from.values():
            arrived.put(None)
        for link in list(self._links):
            links.shut(link)

    def _accept(self) -> None:
        while not self._closed:
            with suppress(OSError):  # a peer disconnected, or the listener was closed
                connection, _ = self._listener.accept()
                threading.Thread(target=self._admit, args=(connection,), daemon=True).start()

    def _admit(self, connection: socket.socket) -> None:
        with suppress(OSError, ValueError, TypeError, KeyError):
            links.admit(connection, self.key)
            self._register(connection)
            self._connections_from[Worker(*json.loads(links.receive_frame(connection)))].put(connection)

    def _register(self, connection: socket.socket) -> socket.socket:
        self._links.append(connection)
        if self._closed:
            links.shut(connection)
        return connection

    def _dial(self, to: Worker) -> socket.socket:
        while (address := self.board.get(keys.LISTENS(self.generation, to))) is None:
            if self._closed:
                raise ConnectionError("the generation has ended")
            time.sleep(_QUERY_INTERVAL)
        host, port = address
        connection = self._register(links.dial(host, port, self.key))
        links.send_frame(connection, json.dumps(self.me).encode())
        return connection

    def _open_sender(self, to: Worker) -> Callable[[Any], Any]:
        link = self._dial(to)
        return lambda message: link.sendall(_bytes(message.cpu().contiguous()))

    def _open_receiver(self, source: Worker) -> Callable[[Any], Any]:
        link = self._connections_from[source].get()
        if link is None:
            raise ConnectionError("the generation has ended")

        def receive(announced: tuple[tuple[int, ...], torch.dtype]) -> torch.Tensor:
            message = torch.empty(announced[0], dtype=announced[1])
            links.receive_into(link, _bytes(message))
            return message

        return receive


class _WorkerThread:
    """A thread that sends or receives messages, one after the other."""

    def __init__(self, connect: Callable[[], Callable[[Any], Any]], name: str) -> None:
        self.orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.results: queue.Queue[Any] = queue.Queue(AHEAD)
        self.error: Exception | None = None
        self._connect, self._keeps_results = connect, name.startswith("from")
        self._closed = False
        threading.Thread(target=self._run, name=f"messages {name}", daemon=True).start()

    def close(self) -> None:
        """Make the thread end. It ends immediately if it is waiting for an order, or for space in ``results``."""
        self._closed = True
        self.orders.put(None)
        with suppress(queue.Empty):
            while True:
                self.results.get_nowait()

    def _run(self) -> None:
        work: Callable[[Any], Any] | None = None
        while (order := self.orders.get()) is not None and not self._closed:
            try:
                work = work or self._connect()
                result = work(order)
            except Exception as error:  # noqa: BLE001 - raised in ``receive``
                result = self.error = error
            if self._keeps_results and not self._closed:
                self.results.put(result)
            if self.error is not None:
                return


def _bytes(message: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous tensor on the CPU."""
    plain: Any = message.reshape(-1).view(torch.uint8).numpy()
    return memoryview(plain)
