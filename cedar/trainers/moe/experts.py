"""Experts: any modules, all of one kind, whose weights lie side by side, a row for each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from cedar.errors import CedarError

_ALIGNED = 16  # bytes: what grouped products ask of a row


class FeedForward(nn.Module):
    """``gelu(x @ up) @ down``.

    Args:
        width: of a token.
        hidden: units between the two products.
        draws: of its first weights.
    """

    def __init__(self, width: int, hidden: int, draws: torch.Generator | None = None) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(width * hidden, generator=draws).view(width, hidden) * width**-0.5)
        self.down = nn.Parameter(torch.randn(hidden * width, generator=draws).view(hidden, width) * 0.5 * hidden**-0.5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return functional.gelu(tokens @ self.up) @ self.down

    @staticmethod
    def grouped(tokens: torch.Tensor, rows: Sequence[int], weights: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Many at once: one grouped product in place of many small ones."""
        ends = torch.tensor(rows, device=tokens.device).cumsum(0).to(torch.int32)
        inner = functional.gelu(functional.grouped_mm(tokens, weights["up"], offs=ends))
        return functional.grouped_mm(inner, weights["down"], offs=ends)


def grouped_products(device: torch.device, dtype: torch.dtype, *widths: int) -> bool:
    """Whether torch multiplies many matrices of these widths at once on this device.

    On the CPU torch has the function, but it loops inside: the plain loop does as well, and takes any width and dtype.
    """
    if device.type != "cuda" or not hasattr(functional, "grouped_mm"):
        return False
    fits = all(width * dtype.itemsize % _ALIGNED == 0 for width in widths)
    return fits and dtype == torch.bfloat16 and torch.cuda.get_device_capability(device) >= (8, 0)


class Experts:
    """How rows of weights compute.

    Args:
        make: an expert by its number: modules of one class, with parameters of the same shapes and no buffers. One
            with a method ``grouped`` computes many at once where the device can.

    Raises:
        CedarError: an expert has no parameters, has buffers, or parameters of several dtypes.
    """

    def __init__(self, make: Callable[[int], nn.Module]) -> None:
        self.make, self.module = make, make(0)
        named = dict(self.module.named_parameters())
        kinds = {parameter.dtype for parameter in named.values()}
        if len(kinds) != 1 or next(self.module.buffers(), None) is not None:
            raise CedarError(
                f"an expert of class {type(self.module).__name__} has parameters of {len(kinds)} dtypes"
                f" and {len(list(self.module.buffers()))} buffers",
                fix="give experts parameters of one dtype, and no buffers",
            )
        self.dtype = kinds.pop()
        self.shapes = {name: tuple(parameter.shape) for name, parameter in named.items()}
        self.size = sum(parameter.numel() for parameter in named.values())

    def first(self, expert: int) -> torch.Tensor:
        """The first weights of an expert, ``[size]``."""
        parameters = dict((self.module if expert == 0 else self.make(expert)).named_parameters())
        if {name: tuple(p.shape) for name, p in parameters.items()} != self.shapes:
            raise CedarError(f"expert {expert} has other parameters than expert 0", fix="make all of one kind")
        return torch.cat([parameter.detach().flatten() for parameter in parameters.values()])

    def named(self, weights: torch.Tensor) -> dict[str, torch.Tensor]:
        """The parameters in ``[..., size]``: views."""
        sizes = [torch.Size(shape).numel() for shape in self.shapes.values()]
        parts = zip(self.shapes.items(), torch.split(weights, sizes, -1), strict=True)
        return {name: part.reshape(*part.shape[:-1], *shape) for (name, shape), part in parts}

    def outputs(
        self, tokens: torch.Tensor, rows: Sequence[int], weights: torch.Tensor, still: Collection[int] = (),
        *, grouped: bool | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """What each token's expert makes of it.

        Args:
            tokens: ``[sum(rows), width]``, expert by expert.
            rows: of each expert; may be 0.
            weights: ``[experts, size]``.
            still: experts whose weights need no gradient; the loop does not work it out.
            grouped: whether to compute many at once; None: where that pays.

        Example:
            >>> experts = Experts(lambda number: FeedForward(3, 4))
            >>> experts.outputs(torch.zeros(5, 3), [2, 3], torch.ones(2, experts.size)).shape
            torch.Size([5, 3])
        """
        if weights.shape[1] != self.size:
            raise ValueError(f"weights of {weights.shape[1]} values do not fit experts of {self.size}")
        many: Any = getattr(self.module, "grouped", None)
        if grouped is None:
            widths = [size for shape in self.shapes.values() for size in shape]
            grouped = many is not None and grouped_products(tokens.device, tokens.dtype, *widths)
        if grouped:
            return many(tokens, rows, self.named(weights))  # type: ignore[no-any-return]
        pieces = []
        for expert, (piece, row) in enumerate(zip(torch.split(tokens, list(rows)), weights.unbind(), strict=True)):
            parameters = self.named(row.detach() if expert in still else row)
            pieces.append(functional_call(self.module, parameters, (piece,)) if len(piece) else piece)
        return torch.cat(pieces)
