"""What an executor needs of a network: the rules that NCCL's point-to-point calls have, too.

1. There are no tags. Messages from one worker to another are one ordered queue: the n-th receive gets the n-th send.
2. Each ordered pair has a queue, and a thread or stream, of its own: a queue that waits holds up no other.
3. A message is sent when its receiver has a buffer for it; until then it must not change. Announced receives get
   buffers in their order, a few of each queue at a time: what is announced ahead of computing blocks nothing.
4. The receiver gives shape and dtype.
5. ``close`` gives up everything at once, and so does a newer generation: nothing waits for the dead.

``SocketTransport`` is what runs use; a transport within one process, in the tests, holds executors to these rules.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

from cedar.core.errors import CedarError
from cedar.trainers.resilient.schedule import Worker


class Superseded(Exception):
    """A newer generation of workers has begun: what is in progress is given up."""


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
        """Give up everything that is in progress: the code that waits in ``receive`` gets Lost, at once."""


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
        """Ask repeatedly, at growing distances, until the answer is not None."""
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
