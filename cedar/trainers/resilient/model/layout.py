"""The parameters of a stage as one vector, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import nn


@dataclass(frozen=True)
class Layout:
    """Where each parameter is in the vector, ``[size]``.

    Args:
        shapes: of each parameter, by name, in the order of the vector.
        tied: how many elements at the vector's beginning are shared with another stage.
    """

    shapes: Mapping[str, tuple[int, ...]]
    tied: int = 0

    @classmethod
    def of(cls, module: nn.Module, shared: str | None = None) -> Self:
        """The parameters of a module, the shared one first, the others in its order."""
        named = dict(module.named_parameters())
        order = ([shared] if shared in named else []) + [name for name in named if name != shared]
        shapes = {name: tuple(named[name].shape) for name in order if name is not None}
        return cls(shapes, named[shared].numel() if shared is not None and shared in named else 0)

    @property
    def size(self) -> int:
        return sum(torch.Size(shape).numel() for shape in self.shapes.values())

    def pieces(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        """The parameters in a vector: views."""
        found, at = {}, 0
        for name, shape in self.shapes.items():
            count = torch.Size(shape).numel()
            found[name] = vector[at : at + count].view(shape)
            at += count
        return found

    def gather(self, named: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """A float32 vector from parameters; those that are missing are 0."""
        vector = torch.zeros(self.size, device=next((t.device for t in named.values()), torch.device("cpu")))
        pieces = self.pieces(vector)
        for name, value in named.items():
            pieces[name].copy_(value.detach())
        return vector

    def put(self, vector: torch.Tensor, parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Write a vector into parameters."""
        pieces = self.pieces(vector)
        with torch.no_grad():
            for name, parameter in parameters:
                parameter.copy_(pieces[name])
