"""Weights and optimizer state of a stage. A step makes a new state and leaves the old one as it was: undoing is going
back to the old one, saving needs no copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from cedar.trainers.resilient.model.layout import Layout


@dataclass(frozen=True)
class State:
    """A stage after a number of steps.

    Args:
        version: steps taken, those that were skipped for gradients that are not finite among them.
        updates: steps that changed the weights.
        master: weights, float32 ``[size]``.
        first: first moments, the same shape.
        second: second moments, the same shape.
    """

    version: int
    updates: int
    master: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor

    @classmethod
    def begin(cls, master: torch.Tensor) -> State:
        return cls(0, 0, master, torch.zeros_like(master), torch.zeros_like(master))

    @property
    def nbytes(self) -> int:
        return self.master.nbytes + self.first.nbytes + self.second.nbytes


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019).

    Args:
        rate: learning rate of a step.
        betas: of the two moments.
        eps: added to the root of the second moment.
        decay: of parameters with two or more dimensions.
        clip: the largest norm of the gradients of all stages together; 0 for no limit.
    """

    rate: Callable[[int], float]
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    decay: float = 0.01
    clip: float = 1.0

    def scale(self, norms: list[float]) -> float | None:
        """What to multiply gradients with, from the sum of squares of each stage; None where one is not finite.

        Example:
            >>> AdamW(lambda step: 1e-3, clip=1.0).scale([9.0, 16.0])
            0.2
        """
        total = 0.0
        for norm in norms:  # in the order of stages: the same bits everywhere
            total += norm
        if not math.isfinite(total):
            return None
        norm = math.sqrt(total)
        return self.clip / norm if 0 < self.clip < norm else 1.0

    def step(self, state: State, gradient: torch.Tensor, layout: Layout, scale: float | None) -> State:
        """The state after ``state``; with a scale of None, its weights stay as they are."""
        if scale is None:
            return State(state.version + 1, state.updates, state.master, state.first, state.second)
        gradient = gradient * scale if scale != 1.0 else gradient
        one, two = self.betas
        updates, rate = state.updates + 1, self.rate(state.version)
        first = state.first * one + gradient * (1 - one)
        second = state.second * two + gradient * gradient * (1 - two)
        change = (first / (1 - one**updates)) / ((second / (1 - two**updates)).sqrt() + self.eps)
        master = state.master - change * rate
        if self.decay:
            old, new = layout.pieces(state.master), layout.pieces(master)
            for name, piece in new.items():
                if piece.dim() > 1:
                    piece.sub_(old[name] * (rate * self.decay))
        return State(state.version + 1, updates, master, first, second)
