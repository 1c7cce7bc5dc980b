"""The network interface of an executor, with the same rules as NCCL's point-to-point calls.

1. Messages have no tags. Those from one worker to another form a queue: the n-th receive gets the n-th message sent.
2. Each ordered pair of workers has its own queue, and its own thread or stream, so that queues never block each other.
3. A message is sent once its receiver has a buffer for it. Until then, the sender must not change the message.
   Announced receives get buffers in order, a few per queue at a time, so a worker may announce a whole step.
4. The receiver specifies shape and dtype.
5. ``close`` or a newer generation aborts all sends and receives, so that no thread waits for a dead worker.

Runs use ``SocketTransport``. The tests check executors against these rules with a transport within one process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

from cedar.core.errors import CedarError
from cedar.trainers.resilient.schedule import Worker


class Superseded(Exception):
    """A newer generation of workers has begun, so the worker must abandon the current work."""


class Lost(CedarError):
    """A message cannot be sent or received any more."""


class Transport(Protocol):
    """A channel for messages among the workers of a generation."""

    def send(self, to: Worker, message: torch.Tensor) -> None:
        """Queue a message for a worker, without blocking. The caller must not change the message afterwards."""

    def expect(self, source: Worker, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Announce the shape and dtype of the next message from a worker, so that it can be received early."""

    def receive(self, source: Worker) -> torch.Tensor:
        """Wait for the oldest announced message from a worker, and return it.

        Raises:
            Superseded: a newer generation has begun.
            Lost: the message will not arrive, or has another shape.
        """

    def close(self) -> None:
        """Abort all sends and receives. Callers that are waiting in ``receive`` get Lost immediately."""


T = TypeVar("T")
POLL_INTERVAL = 0.005  # seconds between two checks for a newer generation; a check only reads memory
_MAX_PAUSE = 0.004  # max seconds between two polls


class Waiting:
    """Lets the threads of one worker wait until something happens, a newer generation begins, or time is up.

    Args:
        generation: the worker's generation.
        newest: returns the newest generation; called often, so it must be cheap.
        patience: seconds after which a wait fails.
    """

    def __init__(self, generation: int, newest: Callable[[], int], patience: float = 600.0) -> None:
        self.generation, self.newest, self.patience = generation, newest, patience

    def check(self) -> None:
        """Raise Superseded if a newer generation has begun."""
        if self.newest() > self.generation:
            raise Superseded

    def until(self, ready: Callable[[float], bool], awaited: str) -> None:
        """Wait until ``ready(seconds)``, which may block for that long, returns True.

        Raises:
            Superseded: a newer generation has begun.
            Lost: the wait took longer than ``patience``.
        """
        end = time.monotonic() + self.patience
        while not ready(POLL_INTERVAL):
            self.check()
            if time.monotonic() > end:
                raise Lost(f"waited {self.patience:g} s for {awaited}", fix="look for slow workers in the run's report")

    def poll(self, ready: Callable[[], T | None], awaited: str) -> T:
        """Call ``ready`` at increasing intervals until it returns a value other than None, and return this value."""
        answers: list[T] = []
        pause = [0.0005]

        def check_ready(longest: float) -> bool:
            answer = ready()
            if answer is not None:
                answers.append(answer)
                return True
            time.sleep(min(pause[0], longest))
            pause[0] = min(1.5 * pause[0], _MAX_PAUSE)
            return False

        self.until(check_ready, awaited)
        return answers[0]
