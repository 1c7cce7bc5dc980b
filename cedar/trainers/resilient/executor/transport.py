"""What an executor needs of a network: the rules that NCCL's point-to-point calls have, too.

1. There are no tags. Messages from one worker to another are one ordered queue: the n-th receive gets the n-th send.
2. Each ordered pair has a queue, and a thread or stream, of its own: a queue that waits holds up no other.
3. A message is sent when its receiver has a buffer for it; until then it must not change. Announced receives get
   buffers in their order, a few of each queue at a time: what is announced ahead of computing blocks nothing.
4. Shape and dtype are told by the receiver.
5. ``close`` gives up everything at once, and so does a newer generation: nobody waits for the dead.

``StrictTransport`` holds others to these rules, in one process; ``SocketTransport`` is what runs use.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch

from cedar.core.errors import CedarError
from cedar.trainers.resilient.schedule import Worker


class Superseded(Exception):
    """A newer generation of workers has begun: what is under way is given up."""


class Lost(CedarError):
    """A message cannot be sent or received any more."""


class Transport(Protocol):
    """Messages among the workers of one generation."""

    def send(self, to: Worker, message: torch.Tensor) -> None:
        """Give a message on its way, after all those sent there before. Does not block; the message must not change."""

    def expect(self, source: Worker, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """The next message from there that was not announced yet has this shape: it may be received ahead."""

    def receive(self, source: Worker) -> torch.Tensor:
        """The oldest message from there that was announced; waits for it.

        Raises:
            Superseded: a newer generation has begun.
            Lost: the message will not come, or has another shape.
        """

    def close(self) -> None:
        """Give up everything that is under way: whoever waits in ``receive`` gets Lost, at once."""


T = TypeVar("T")
POLL = 0.005  # seconds between two looks for a newer generation: in memory, so it costs next to nothing
_LONGEST = 0.004  # seconds between two questions: what a step's end may be noticed late


class Waiting:
    """How the threads of one worker wait.

    Args:
        generation: the one that the worker is in.
        newest: the newest there is; cheap to ask.
        patience: seconds after which a wait is given up.
    """

    def __init__(self, generation: int, newest: Callable[[], int], patience: float = 600.0) -> None:
        self.generation, self.newest, self.patience = generation, newest, patience

    def check(self) -> None:
        """Raises Superseded if a newer generation has begun."""
        if self.newest() > self.generation:
            raise Superseded

    def until(self, ready: Callable[[float], bool], awaited: str) -> None:
        """Wait until ``ready(seconds)``, which may block for so long, says yes.

        Raises:
            Superseded: a newer generation has begun.
            Lost: the patience is over.
        """
        end = time.monotonic() + self.patience
        while not ready(POLL):
            self.check()
            if time.monotonic() > end:
                raise Lost(f"waited {self.patience:g} s for {awaited}", fix="see who is slow in the run's report")

    def poll(self, ready: Callable[[], T | None], awaited: str) -> T:
        """Ask again and again, at growing distances, until the answer is not None."""
        answers: list[T] = []
        pause = [0.0005]

        def ask(longest: float) -> bool:
            answer = ready()
            if answer is not None:
                answers.append(answer)
                return True
            time.sleep(min(pause[0], longest))
            pause[0] = min(1.5 * pause[0], _LONGEST)
            return False

        self.until(ask, awaited)
        return answers[0]


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
