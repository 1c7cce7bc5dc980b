"""How features meet: dot products of pairs (DLRM, arXiv 1906.00091), or crosses (DCN-v2, arXiv 2008.13535)."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn


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
        self.register_buffer("pairs", pairs[0] * n + pairs[1], persistent=False)
        self.pairs: torch.Tensor

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        products = torch.bmm(rows, rows.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return torch.cat([rows[:, 0], products], 1) if self.first else products


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
