"""Dropout that depends on what is worked, never on who works it."""

from __future__ import annotations

from typing import NamedTuple

import torch

from cedar.trainers.common.digest import generator


class Place(NamedTuple):
    """Where in a run a micro-batch is."""

    seed: int
    step: int
    replica: int
    micro_batch: int


def dropout(x: torch.Tensor, share: float, layer: str, place: Place | None) -> torch.Tensor:
    """``x`` without a share of its values, the others made larger; the same values for the same layer and place.

    Args:
        x: any shape.
        share: of values that become 0.
        layer: its name in the whole model.
        place: None while evaluating: nothing is dropped.

    Example:
        >>> x = torch.ones(4, 4)
        >>> one, two = (dropout(x, 0.5, "blocks.0", Place(0, 7, 1, 2)) for _ in range(2))
        >>> torch.equal(one, two)
        True
    """
    if place is None or share == 0:
        return x
    numbers = torch.rand(x.shape, generator=generator(x.device, *place, layer), device=x.device)
    return x * (numbers >= share).to(x.dtype) / (1 - share)
