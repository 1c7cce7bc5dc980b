"""Weights and optimizer state of a stage. A step makes a new state and leaves the old one as it was: undoing is going
back to the old one, saving needs no copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from cedar.trainers.common.adamw import adamw
from cedar.trainers.resilient.model.layout import Layout


@dataclass(frozen=True)
class State:
    """A stage after a number of steps.

    Args:
        version: steps taken, those that were skipped for gradients that are not finite among them.
        updates: steps that changed the weights.
        master: weights, float32 or float64 ``[size]``.
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


class Optimizer(Protocol):
    """What a pipeline asks of an optimizer: that a step makes a new state. Elements of a vector are alike to it."""

    def scale(self, norms: list[float]) -> float | None:
        """What to multiply gradients with (clipping), from the sum of squares of each stage; None: skip the step."""

    def step(self, state: State, gradient: torch.Tensor, layout: Layout, scale: float | None) -> State:
        """The state after ``state``, which stays as it is; with a scale of None, its weights are the same."""


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
        master, first, second = state.master.clone(), state.first.clone(), state.second.clone()
        rate, decay = self.rate(state.version), layout.decayed.to(master) * self.decay
        adamw(
            master, first, second, gradient, rate=rate, decay=decay, betas=self.betas, eps=self.eps,
            step=state.updates + 1,
        )  # fmt: skip
        return State(state.version + 1, state.updates + 1, master, first, second)
