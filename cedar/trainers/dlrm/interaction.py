"""How features meet: dot products of pairs (DLRM, arXiv 1906.00091), or crosses (DCN-v2, arXiv 2008.13535)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Dot(nn.Module):
    """``[rows, n, width]`` to the products of all pairs, beside the first of the n where ``first`` is set.

    Args:
        n: vectors of a row.
        width: of each.
        first: keep the first vector: that of the dense features.
    """

    def __init__(self, n: int, width: int, *, first: bool) -> None:
        super().__init__()
        self.first = first
        self.size = n * (n - 1) // 2 + (width if first else 0)
        pairs = torch.tril_indices(n, n, -1)
        places = torch.full((n, n), pairs.shape[1])  # of what stands behind the last pair: 0
        places[pairs[0], pairs[1]] = places[pairs[1], pairs[0]] = torch.arange(pairs.shape[1])
        self.register_buffer("pairs", pairs[0] * n + pairs[1], persistent=False)
        self.register_buffer("places", places.flatten(), persistent=False)
        self.pairs: torch.Tensor
        self.places: torch.Tensor

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = _Products.apply(rows, self.pairs, self.places, self.first)  # type: ignore[no-untyped-call]
        return found


class _Products(torch.autograd.Function):
    """Products are symmetric, so one multiplication gives their gradient, where autograd would take two."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, pairs: torch.Tensor, places: torch.Tensor, first: bool) -> torch.Tensor:
        ctx.save_for_backward(rows, places)
        ctx.start = start = rows.shape[2] if first else 0
        products = torch.bmm(rows, rows.transpose(1, 2)).flatten(1)
        found = products.new_empty(len(rows), start + len(pairs))
        found[:, :start] = rows[:, 0, :start]
        found[:, start:] = products.index_select(1, pairs)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (rows, places), grad = ctx.saved_tensors, grads[0].to(ctx.saved_tensors[0].dtype)
        n, start = rows.shape[1], ctx.start
        both = functional.pad(grad[:, start:], (0, 1)).index_select(1, places).view(-1, n, n)
        found = torch.bmm(both, rows)
        found[:, 0, :start] += grad[:, :start]
        return found, None, None, None


class Cross(nn.Module):
    """Layers x' = x0 * (U V x + b) + x over the vectors of a row side by side.

    Args:
        n: vectors of a row.
        width: of each.
        layers: how many.
        rank: columns of U.
    """

    def __init__(self, n: int, width: int, layers: int, rank: int) -> None:
        super().__init__()
        self.size = n * width
        self.down = nn.ModuleList(nn.Linear(self.size, rank, bias=False) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(rank, self.size) for _ in range(layers))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        start = rows.flatten(1)
        found = start
        for down, up in zip(self.down, self.up, strict=True):
            found = start * up(down(found)) + found
        return found


def mlp(sizes: list[int], *, end: bool) -> nn.Sequential:
    """Linear layers with ReLU between them, and behind the last one where ``end`` is set."""
    layers: list[nn.Module] = []
    for at, (before, after) in enumerate(pairwise(sizes)):
        layers.append(nn.Linear(before, after))
        if end or at < len(sizes) - 2:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)
