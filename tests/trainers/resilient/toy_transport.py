"""A transport within one process that holds executors to the rules of ``resilient.executor.transport``."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from dataclasses import dataclass, field

import torch

from cedar.trainers.resilient.executor import Lost, Waiting
from cedar.trainers.resilient.schedule import Worker

AHEAD = 2  # buffers of a queue


@dataclass
class Queue:
    """From one worker to another: what is sent, announced, posted and done, each in order."""

    sent: deque[tuple[torch.Tensor, int]] = field(default_factory=deque)
    announced: deque[tuple[tuple[int, ...], torch.dtype]] = field(default_factory=deque)
    posted: deque[torch.Tensor] = field(default_factory=deque)
    done: deque[torch.Tensor | Lost] = field(default_factory=deque)

    def go_on(self, pair: tuple[Worker, Worker]) -> None:
        """Post buffers while there is room, and copy what has met."""
        while self.announced and len(self.posted) + len(self.done) < AHEAD:
            shape, dtype = self.announced.popleft()
            self.posted.append(torch.empty(shape, dtype=dtype))
        while self.posted and self.sent:
            buffer, (message, version) = self.posted.popleft(), self.sent.popleft()
            if message._version != version:
                self.done.append(Lost(f"a message from {pair[0]} to {pair[1]} was changed before it was sent"))
            elif buffer.shape != message.shape or buffer.dtype != message.dtype:
                self.done.append(
                    Lost(
                        f"{pair[1]} expected {list(buffer.shape)} {buffer.dtype} from {pair[0]}, and got"
                        f" {list(message.shape)} {message.dtype}",
                        fix="start all workers with the same configuration",
                    )
                )
            else:
                self.done.append(buffer.copy_(message))


class StrictNetwork:
    """The network of one generation."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.queues: dict[tuple[Worker, Worker], Queue] = defaultdict(Queue)
        self.log: list[tuple[Worker, Worker, tuple[int, ...]]] = []


class StrictTransport:
    """One worker's end of it."""

    def __init__(self, network: StrictNetwork, me: Worker, waiting: Waiting) -> None:
        self.network, self.me, self.waiting, self._closed = network, me, waiting, False

    def send(self, to: Worker, message: torch.Tensor) -> None:
        with self.network.changed:
            message = message.detach()
            self.network.queues[self.me, to].sent.append((message, message._version))
            self.network.log.append((self.me, to, tuple(message.shape)))
            self._go_on(self.me, to)

    def expect(self, source: Worker, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        with self.network.changed:
            self.network.queues[source, self.me].announced.append((shape, dtype))
            self._go_on(source, self.me)

    def receive(self, source: Worker) -> torch.Tensor:
        queue, changed = self.network.queues[source, self.me], self.network.changed
        with changed:  # another thread may be moving a message from one to the other
            announced = bool(queue.announced or queue.posted or queue.done)
        if not announced:
            raise Lost(f"{self.me} receives a message from {source} that was not announced")

        def ready(seconds: float) -> bool:
            with changed:
                return changed.wait_for(lambda: bool(queue.done) or self._closed, seconds)

        self.waiting.until(ready, f"a message from {source}")
        if self._closed:
            raise Lost(f"{self.me} has closed its connections")
        with changed:
            message = queue.done.popleft()
            self._go_on(source, self.me)
        if isinstance(message, Lost):
            raise message
        return message

    def _go_on(self, source: Worker, to: Worker) -> None:
        self.network.queues[source, to].go_on((source, to))
        self.network.changed.notify_all()

    def close(self) -> None:
        with self.network.changed:
            self._closed = True
            self.network.changed.notify_all()
