"""Messages by sockets: one connection for each pair of workers and direction, to those alone who hold the run's key.

Threads wait in the network: one for each worker that messages come from, one for each that they go to. When a
generation ends, its connections are shut, which ends them.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from cedar.trainers.common import links
from cedar.trainers.resilient.control import protocol as keys
from cedar.trainers.resilient.control.board import Board
from cedar.trainers.resilient.executor.lanes import LaneTransport
from cedar.trainers.resilient.executor.waiting import Waiting
from cedar.trainers.resilient.schedule import Worker

_LOOK = 0.002  # seconds between two looks for where another worker listens


class SocketTransport(LaneTransport):
    """One worker's end of a generation's connections.

    Args:
        board: where workers tell each other where they listen; safe to be asked by threads.
        host: the address to listen at.
        key: of the run.
        members: of the generation.
        me: this one of them.
        waiting: ends waits.
        generation: its number.
    """

    def __init__(
        self, board: Board, host: str, key: bytes, members: Sequence[Worker], me: Worker, waiting: Waiting,
        generation: int,
    ) -> None:  # fmt: skip
        super().__init__(me, waiting)
        self.board, self.key, self.generation = board, key, generation
        self._links: list[socket.socket] = []
        self._arrived: dict[Worker, queue.SimpleQueue[socket.socket | None]] = {
            worker: queue.SimpleQueue() for worker in members
        }
        self._listener = links.listen(host)
        threading.Thread(target=self._accept, name="connections", daemon=True).start()
        board.put(keys.LISTENS(generation, me), list(self._listener.getsockname()[:2]))

    def close(self) -> None:
        """Shut all connections, which ends the threads that wait in them."""
        super().close()
        links.shut(self._listener)
        for arrived in self._arrived.values():
            arrived.put(None)
        for link in list(self._links):
            links.shut(link)

    def _accept(self) -> None:
        while not self._closed:
            with suppress(OSError):  # one that goes away, or the end
                connection, _ = self._listener.accept()
                threading.Thread(target=self._admit, args=(connection,), daemon=True).start()

    def _admit(self, connection: socket.socket) -> None:
        with suppress(OSError, ValueError, TypeError, KeyError):
            links.admit(connection, self.key)
            self._keep(connection)
            self._arrived[Worker(*json.loads(links.receive_frame(connection)))].put(connection)

    def _keep(self, connection: socket.socket) -> socket.socket:
        self._links.append(connection)
        if self._closed:
            links.shut(connection)
        return connection

    def _dial(self, to: Worker) -> socket.socket:
        while (found := self.board.take(keys.LISTENS(self.generation, to))) is None:
            if self._closed:
                raise ConnectionError("the generation has ended")
            time.sleep(_LOOK)
        host, port = found
        connection = self._keep(links.dial(host, port, self.key))
        links.send_frame(connection, json.dumps(self.me).encode())
        return connection

    def _sending(self, to: Worker) -> Callable[[Any], Any]:
        link: list[socket.socket] = []

        def send(message: torch.Tensor) -> None:
            if not link:
                link.append(self._dial(to))
            link[0].sendall(_bytes(message.cpu().contiguous()))

        return send

    def _receiving(self, source: Worker) -> Callable[[Any], Any]:
        link: list[socket.socket | None] = []

        def receive(announced: tuple[tuple[int, ...], torch.dtype]) -> torch.Tensor:
            if not link:
                link.append(self._arrived[source].get())
            if link[0] is None:
                raise ConnectionError("the generation has ended")
            message = torch.empty(announced[0], dtype=announced[1])
            links.receive_into(link[0], _bytes(message))
            return message

        return receive


def _bytes(message: torch.Tensor) -> memoryview:
    """The memory of a tensor that lies in one piece, on the CPU."""
    plain: Any = message.reshape(-1).view(torch.uint8).numpy()
    return memoryview(plain)
