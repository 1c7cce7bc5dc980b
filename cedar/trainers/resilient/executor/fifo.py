"""A network within one process, as strict as one can be: no tags, first in first out between two workers, shapes told.

For tests and for looking at schedules: each worker is a thread.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque

import torch

from cedar.trainers.resilient.executor.transport import Lost
from cedar.trainers.resilient.executor.waiting import Waiting
from cedar.trainers.resilient.schedule import Worker


class Fifo:
    """The network of one generation."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.lanes: dict[tuple[Worker, Worker], deque[torch.Tensor]] = defaultdict(deque)
        self.log: list[tuple[Worker, Worker, tuple[int, ...]]] = []


class FifoTransport:
    """One worker's end of it.

    Args:
        fifo: shared by all workers.
        me: this one.
        waiting: ends waits.
    """

    def __init__(self, fifo: Fifo, me: Worker, waiting: Waiting) -> None:
        self.fifo, self.me, self.waiting = fifo, me, waiting
        self._announced: dict[Worker, deque[tuple[tuple[int, ...], torch.dtype]]] = defaultdict(deque)

    def send(self, to: Worker, message: torch.Tensor) -> None:
        with self.fifo.changed:
            self.fifo.lanes[self.me, to].append(message.detach().clone())
            self.fifo.log.append((self.me, to, tuple(message.shape)))
            self.fifo.changed.notify_all()

    def expect(self, source: Worker, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self._announced[source].append((shape, dtype))

    def receive(self, source: Worker) -> torch.Tensor:
        if not self._announced[source]:
            raise Lost(f"{self.me} receives a message from {source} that was not announced")
        shape, dtype = self._announced[source].popleft()
        lane = self.fifo.lanes[source, self.me]

        def ready(seconds: float) -> bool:
            with self.fifo.changed:
                return self.fifo.changed.wait_for(lambda: bool(lane), seconds)

        self.waiting.until(ready, f"a message from {source}")
        message = lane.popleft()
        if tuple(message.shape) != shape or message.dtype != dtype:
            raise Lost(
                f"{self.me} expected {list(shape)} {dtype} from {source}, and got {list(message.shape)}"
                f" {message.dtype}",
                fix="start all workers with the same configuration",
            )
        return message

    def close(self) -> None:
        self._announced.clear()
