"""What an executor needs of a network: the rules that NCCL's point-to-point calls have, too.

1. There are no tags. Messages from one worker to another are one ordered queue: the n-th receive gets the n-th send.
2. Each ordered pair has a queue, and a thread or stream, of its own: a queue that waits holds up no other.
3. A message is sent when its receiver has a buffer for it; until then it must not change. Announced receives get
   buffers in their order, a few of each queue at a time: what is announced ahead of computing blocks nothing.
4. Shape and dtype are told by the receiver.
5. ``close`` gives up everything at once, and so does a newer generation: nobody waits for the dead.

``StrictTransport`` holds others to these rules, in one process; ``SocketTransport`` is what runs use;
``GroupTransport`` is torch.distributed, NCCL or gloo.
"""

from __future__ import annotations

from typing import Protocol

import torch

from cedar.errors import CedarError
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
