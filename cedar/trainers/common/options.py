"""Settings that trainers share: AdamW and its rate, a transformer's sizes, and what is checked of numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from cedar.trainers.common.schedules import constant, cosine


@dataclass(frozen=True)
class TransformerOptions:
    """A GPT-style model.

    Args:
        layers: blocks.
        width: of a token inside the model.
        heads: of attention.
        dropout: share of values that a block's outputs lose while training.
    """

    layers: int = 2
    width: int = 64
    heads: int = 4
    dropout: float = 0.0

    def __post_init__(self) -> None:
        positive(self, "layers", "width", "heads")
        if self.width % self.heads:
            raise ValueError(f"a width of {self.width} cannot be cut into {self.heads} heads")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}: give 0 or more, and less than 1")


@dataclass(frozen=True)
class AdamWOptions:
    """AdamW.

    Args:
        rate: the highest learning rate.
        least: the last learning rate of the cosine.
        warmup: steps of linear growth.
        schedule: ``cosine`` or ``constant``.
        betas: of the two moments.
        eps: added to the root of the second moment.
        decay: of weights with two or more dimensions.
        clip: the largest norm of all gradients together; 0 for no limit.
    """

    rate: float = 1e-3
    least: float = 1e-4
    warmup: int = 0
    schedule: Literal["cosine", "constant"] = "cosine"
    betas: tuple[float, ...] = (0.9, 0.95)
    eps: float = 1e-8
    decay: float = 0.01
    clip: float = 1.0

    def __post_init__(self) -> None:
        not_negative(self, "rate", "least", "warmup", "eps", "decay", "clip")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas are {self.betas}: give two numbers of 0 or more, less than 1")

    def rate_at(self, step: int, steps: int) -> float:
        """The learning rate of a step of so many."""
        if self.schedule == "constant":
            return constant(step, peak=self.rate, warmup=self.warmup)
        return cosine(step, peak=self.rate, steps=steps, warmup=self.warmup, least=self.least)


def positive(options: object, *names: str) -> None:
    """Refuse numbers below 1.

    Raises:
        ValueError: it names the first.
    """
    for name in names:
        if getattr(options, name) < 1:
            raise ValueError(f"{name} is {getattr(options, name)}: give 1 or more")


def not_negative(options: object, *names: str) -> None:
    """Refuse numbers, or tuples of numbers, below 0 or not finite.

    Raises:
        ValueError: it names the first.
    """
    for name in names:
        value = getattr(options, name)
        if not all(0 <= each < math.inf for each in (value if isinstance(value, (tuple, list)) else (value,))):
            raise ValueError(f"{name} is {value}: give 0 or more")
