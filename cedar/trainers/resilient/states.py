"""A stage's state on its way to a new worker of the stage; and the copies that a staggered step keeps."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch

from cedar.trainers.resilient.executor import Transport
from cedar.trainers.resilient.model import State
from cedar.trainers.resilient.schedule import Worker


@dataclass(frozen=True)
class Pending:
    """A step that was taken before the norms of all stages were known.

    Args:
        state: from before the step: W_k and the optimizer's state.
        gradient: of the step.
        scale: that was taken for it; None: the step was skipped.
        line: since when norms are told: the generation of the last restore of all.
    """

    state: State
    gradient: torch.Tensor
    scale: float | None
    line: int

    @property
    def nbytes(self) -> int:
        return self.state.nbytes + self.gradient.nbytes


def send_state(transport: Transport, to: Worker, state: State, pending: Pending | None) -> None:
    """Everything that a worker of the same stage needs to take part."""
    line = 0 if pending is None else pending.line
    before = state if pending is None else pending.state
    scale = torch.tensor([0.0 if pending is None or pending.scale is None else pending.scale], dtype=torch.float64)
    skipped = pending is not None and pending.scale is None
    numbers = [state.version, state.updates, before.version, before.updates, line, int(skipped)]
    transport.send(to, torch.tensor(numbers, dtype=torch.int64))
    vectors = [state.master, state.first, state.second]
    if pending is not None:
        vectors += [before.master, before.first, before.second, pending.gradient]
    transport.send(to, torch.cat(vectors))
    if pending is not None:
        transport.send(to, scale)


def receive_state(transport: Transport, source: Worker, like: torch.Tensor) -> tuple[State, Pending | None]:
    """What ``send_state`` sent; ``like`` is a vector of the stage."""
    transport.expect(source, (6,), torch.int64)
    version, updates, before, before_updates, line, skipped = transport.receive(source).tolist()
    transport.expect(source, (len(like) * (7 if line else 3),), like.dtype)
    parts = [part.clone() for part in torch.split(transport.receive(source).to(like), len(like))]
    state = State(version, updates, *parts[:3])
    if not line:
        return state, None
    transport.expect(source, (1,), torch.float64)
    scale = float(transport.receive(source))
    old = State(before, before_updates, *parts[3:6])
    return state, Pending(old, parts[6], None if skipped else scale, line)


def digest(state: State) -> str:
    """Of the weights' bits."""
    return hashlib.blake2b(state.master.cpu().view(torch.uint8).numpy().tobytes(), digest_size=16).hexdigest()
