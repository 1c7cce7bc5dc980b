"""The parameters of a stage as one vector, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch


@dataclass(frozen=True)
class Layout:
    """Where each parameter is in the vector, ``[size]``.

    Args:
        shapes: of each parameter, by name, in the order of the vector.
        tied: how many elements at the vector's beginning are shared with another stage.
        dtype: of the vector.
    """

    shapes: Mapping[str, tuple[int, ...]]
    tied: int = 0
    dtype: torch.dtype = torch.float32

    @classmethod
    def of(cls, named: Mapping[str, torch.Tensor], shared: str | None, dtype: torch.dtype = torch.float32) -> Self:
        """The parameters by name, the shared one first, the others in their order."""
        order = ([] if shared is None else [shared]) + [name for name in named if name != shared]
        shapes = {name: tuple(named[name].shape) for name in order}
        return cls(shapes, 0 if shared is None else named[shared].numel(), dtype)

    @cached_property
    def size(self) -> int:
        return sum(torch.Size(shape).numel() for shape in self.shapes.values())

    @cached_property
    def decayed(self) -> torch.Tensor:
        """1 where an element is of a parameter with two or more dimensions, else 0: those that weight decay is for."""
        ones = {name: torch.ones(shape) for name, shape in self.shapes.items() if len(shape) > 1}
        return self.gather(ones)

    def pieces(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        """The parameters in a vector: views."""
        found, at = {}, 0
        for name, shape in self.shapes.items():
            count = torch.Size(shape).numel()
            found[name] = vector[at : at + count].view(shape)
            at += count
        return found

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
