"""Weights and optimizer state of a stage, each as one vector.

A step makes a new state and does not change the old one. So a step can be undone, and a state saved without a copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, Self

import torch

from cedar.trainers.common.compute import adamw
from cedar.trainers.common.config import AdamWOptions


@dataclass(frozen=True)
class Layout:
    """The order and shapes of the parameters in a stage's vector, ``[size]``."""

    shapes: Mapping[str, tuple[int, ...]]  # shape of each parameter by name, in the order of the vector
    shared: int = 0  # number of parameters that are shared with other stages; they come first
    dtype: torch.dtype = torch.float32

    @classmethod
    def from_parameters(
        cls, named: Mapping[str, torch.Tensor], shared: Sequence[str] = (), dtype: torch.dtype = torch.float32
    ) -> Self:  # fmt: skip
        """Make a layout: shared parameters first, then the others in the given order."""
        order = [*shared, *(name for name in named if name not in shared)]
        return cls({name: tuple(named[name].shape) for name in order}, len(shared), dtype)

    @cached_property
    def tied(self) -> int:
        """Return the number of elements of shared parameters, at the beginning of the vector."""
        return sum(torch.Size(shape).numel() for shape in list(self.shapes.values())[: self.shared])

    @cached_property
    def size(self) -> int:
        return sum(torch.Size(shape).numel() for shape in self.shapes.values())

    @cached_property
    def decayed(self) -> torch.Tensor:
        """Return a vector: 1 for elements with weight decay (parameters of two or more dimensions), 0 for others."""
        ones = {name: torch.ones(shape) for name, shape in self.shapes.items() if len(shape) > 1}
        return self.gather(ones)

    def pieces(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return views of the parameters in a vector."""
        views, at = {}, 0
        for name, shape in self.shapes.items():
            count = torch.Size(shape).numel()
            views[name] = vector[at : at + count].view(shape)
            at += count
        return views

    def gather(self, named: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Make a vector from parameters; missing parameters are 0."""
        device = next((t.device for t in named.values()), torch.device("cpu"))
        vector = torch.zeros(self.size, dtype=self.dtype, device=device)
        pieces = self.pieces(vector)
        for name, value in named.items():
            pieces[name].copy_(value.detach())
        return vector

    def put(self, vector: torch.Tensor, parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy a vector into parameters."""
        pieces = self.pieces(vector)
        with torch.no_grad():
            for name, parameter in parameters:
                parameter.copy_(pieces[name])


@dataclass(frozen=True)
class State:
    """The weights and optimizer state of a stage after some number of steps."""

    version: int  # steps taken, including those skipped because of non-finite gradients
    updates: int  # steps that changed the weights
    master: torch.Tensor  # weights, float32 or float64 ``[size]``
    first: torch.Tensor  # first moments, the same shape
    second: torch.Tensor  # second moments, the same shape
    # during a restore from a sparse checkpoint: the version at which the state will be complete; 0: it is complete
    whole_at: int = 0

    @classmethod
    def initial(cls, master: torch.Tensor) -> State:
        return cls(0, 0, master, torch.zeros_like(master), torch.zeros_like(master))

    def to(self, device: torch.device) -> State:
        """Return the same state on a device."""
        master, first, second = (vector.to(device) for vector in (self.master, self.first, self.second))
        return State(self.version, self.updates, master, first, second, self.whole_at)

    @property
    def nbytes(self) -> int:
        return self.master.nbytes + self.first.nbytes + self.second.nbytes


class Optimizer(Protocol):
    """An optimizer whose step makes a new state. It must treat all elements of a vector the same way."""

    def scale(self, norms: list[float]) -> float | None:
        """Return the factor for gradients (clipping), from each stage's sum of squares; None: skip the step."""

    def step(self, state: State, gradient: torch.Tensor, layout: Layout, scale: float | None) -> State:
        """Return the state after ``state``, which is not changed; if ``scale`` is None, the weights stay the same."""


def clip_scale(norms: list[float], clip: float) -> float | None:
    """Return the factor that limits the norm of all gradients to ``clip``; 0: no limit. Return None if a stage's sum of
    squares is not finite.
    """
    total = 0.0
    for norm in norms:  # a fixed order, so that all workers get bitwise the same total
        total += norm
    if not math.isfinite(total):
        return None
    norm = math.sqrt(total)
    return clip / norm if 0 < clip < norm else 1.0


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019), for a run of ``steps`` steps."""

    options: AdamWOptions
    steps: int = 1

    def scale(self, norms: list[float]) -> float | None:
        """Return the factor for gradients, from each stage's sum of squares; None if a sum is not finite.

        Examples:
            >>> AdamW(AdamWOptions(clip=1.0)).scale([9.0, 16.0])
            0.2
        """
        return clip_scale(norms, self.options.clip)

    def step(self, state: State, gradient: torch.Tensor, layout: Layout, scale: float | None) -> State:
        """Return the state after ``state``; if ``scale`` is None, the weights stay the same."""
        if scale is None:
            return State(state.version + 1, state.updates, state.master, state.first, state.second)
        gradient = gradient * scale if scale != 1.0 else gradient
        master, first, second = state.master.clone(), state.first.clone(), state.second.clone()
        chosen, rate = self.options, self.options.rate_at(state.version, self.steps)
        adamw(
            master, first, second, gradient, rate=rate, decay=layout.decayed.to(master) * chosen.decay,
            betas=chosen.betas, eps=chosen.eps, step=state.updates + 1,
        )  # fmt: skip
        return State(state.version + 1, state.updates + 1, master, first, second)
