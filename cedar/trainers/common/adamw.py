"""AdamW (arXiv 1711.05101) on plain tensors: on whole stages, on shards, on rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

Factor: TypeAlias = float | torch.Tensor


@torch.no_grad()
def adamw(
    weights: torch.Tensor, first: torch.Tensor, second: torch.Tensor, gradient: torch.Tensor, *, rate: Factor,
    decay: Factor, betas: Sequence[float], eps: float, step: int,
) -> None:  # fmt: skip
    """The ``step``-th step from 1, in place; rate and decay may be tensors that fit the weights."""
    one, two = betas
    first.mul_(one).add_(gradient, alpha=1 - one)
    second.mul_(two).addcmul_(gradient, gradient, value=1 - two)
    size = (second / (1 - two**step)).sqrt_().add_(eps)
    weights.mul_(1 - rate * decay)
    weights.sub_((first / (1 - one**step)).div_(size).mul_(rate))
