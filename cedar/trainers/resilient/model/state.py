"""Weights and optimizer state of a stage, each as one vector.

A step makes a new state and leaves the old one as it was: undoing is going back to the old one, saving needs no copy.
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
    """Where each parameter is in the vector, ``[size]``."""

    shapes: Mapping[str, tuple[int, ...]]  # of each parameter, by name, in the order of the vector
    shared: int = 0  # how many parameters at the vector's beginning other stages share
    dtype: torch.dtype = torch.float32

    @classmethod
    def of(
        cls, named: Mapping[str, torch.Tensor], shared: Sequence[str] = (), dtype: torch.dtype = torch.float32
    ) -> Self:  # fmt: skip
        """The parameters by name, the shared ones first, the others in their order."""
        order = [*shared, *(name for name in named if name not in shared)]
        return cls({name: tuple(named[name].shape) for name in order}, len(shared), dtype)

    @cached_property
    def tied(self) -> int:
        """How many elements at the vector's beginning other stages share."""
        return sum(torch.Size(shape).numel() for shape in list(self.shapes.values())[: self.shared])

    @cached_property
    def size(self) -> int:
        return sum(torch.Size(shape).numel() for shape in self.shapes.values())

    @cached_property
    def decayed(self) -> torch.Tensor:
        """1 if an element is of a parameter with two or more dimensions, else 0: those that weight decay is for."""
        ones = {name: torch.ones(shape) for name, shape in self.shapes.items() if len(shape) > 1}
        return self.gather(ones)

    def pieces(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        """The parameters in a vector: views."""
        views, at = {}, 0
        for name, shape in self.shapes.items():
            count = torch.Size(shape).numel()
            views[name] = vector[at : at + count].view(shape)
            at += count
        return views

    def gather(self, named: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """A vector from parameters; those that are missing are 0."""
        device = next((t.device for t in named.values()), torch.device("cpu"))
        vector = torch.zeros(self.size, dtype=self.dtype, device=device)
        pieces = self.pieces(vector)
        for name, value in named.items():
            pieces[name].copy_(value.detach())
        return vector

    def put(self, vector: torch.Tensor, parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Write a vector into parameters."""
        pieces = self.pieces(vector)
        with torch.no_grad():
            for name, parameter in parameters:
                parameter.copy_(pieces[name])


@dataclass(frozen=True)
class State:
    """A stage after a number of steps."""

    version: int  # steps taken, those that were skipped for gradients that are not finite among them
    updates: int  # steps that changed the weights
    master: torch.Tensor  # weights, float32 or float64 ``[size]``
    first: torch.Tensor  # first moments, the same shape
    second: torch.Tensor  # second moments, the same shape
    whole_at: int = 0  # of one from a sparse checkpoint: the step before which the last operator thaws; 0: it is whole

    @classmethod
    def begin(cls, master: torch.Tensor) -> State:
        return cls(0, 0, master, torch.zeros_like(master), torch.zeros_like(master))

    def to(self, device: torch.device) -> State:
        """The same on a device."""
        master, first, second = (vector.to(device) for vector in (self.master, self.first, self.second))
        return State(self.version, self.updates, master, first, second, self.whole_at)

    @property
    def nbytes(self) -> int:
        return self.master.nbytes + self.first.nbytes + self.second.nbytes


class Optimizer(Protocol):
    """What a pipeline asks of an optimizer: that a step makes a new state. Elements of a vector are alike to it."""

    def scale(self, norms: list[float]) -> float | None:
        """What to multiply gradients with (clipping), from the sum of squares of each stage; None: skip the step."""

    def step(self, state: State, gradient: torch.Tensor, layout: Layout, scale: float | None) -> State:
        """The state after ``state``, which stays unchanged; with a scale of None, its weights are the same."""


def clip_scale(norms: list[float], clip: float) -> float | None:
    """What to multiply gradients with so that their norm is at most ``clip``, 0 for no limit; None if the sum of
    squares of a stage is not finite.
    """
    total = 0.0
    for norm in norms:  # in the order of stages: the same bits everywhere
        total += norm
    if not math.isfinite(total):
        return None
    norm = math.sqrt(total)
    return clip / norm if 0 < clip < norm else 1.0


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019), over a number of steps."""

    options: AdamWOptions
    steps: int = 1

    def scale(self, norms: list[float]) -> float | None:
        """What to multiply gradients with, from the sum of squares of each stage; None if one is not finite.

        Examples:
            >>> AdamW(AdamWOptions(clip=1.0)).scale([9.0, 16.0])
            0.2
        """
        return clip_scale(norms, self.options.clip)

    def step(self, state: State, gradient: torch.Tensor, layout: Layout, scale: float | None) -> State:
        """The state after ``state``; with a scale of None, its weights stay unchanged."""
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
