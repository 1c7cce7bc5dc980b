"""What an executor needs of a network. The order of messages between two workers is all that tells them apart."""

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
        """Give up everything that is under way."""
