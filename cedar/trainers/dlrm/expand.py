"""From unique rows to all rows, with a gradient that adds up what belongs together (RecD's O6, arXiv 2211.05239)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional


@dataclass(frozen=True, eq=False)
class Expansion:
    """Which unique row each row is.

    Args:
        index: int64 ``[rows]``.
        unique: how many unique rows there are; each is used.
        ends: int64 ``[unique + 1]``: where each unique row's rows begin, where the index ascends; None where it
            does not.
    """

    index: torch.Tensor
    unique: int
    ends: torch.Tensor | None

    @classmethod
    def of(cls, inverse: torch.Tensor, unique: int) -> Expansion:
        """The index of a group of features, int32 or int64 ``[rows]``.

        Example:
            >>> Expansion.of(torch.tensor([0, 0, 1]), 2).ends.tolist(), Expansion.of(torch.tensor([1, 0]), 2).ends
            ([0, 2, 3], None)
        """
        index = inverse.long()
        if len(index) > 1 and not bool((index[1:] >= index[:-1]).all()):
            return cls(index, unique, None)
        return cls(index, unique, torch.searchsorted(index, torch.arange(unique + 1, device=index.device)))

    def __len__(self) -> int:
        return len(self.index)


def expand(rows: torch.Tensor, by: Expansion) -> torch.Tensor:
    """``rows[by.index]``: ``[unique, ...]`` to ``[rows, ...]``.

    Example:
        >>> unique = torch.tensor([[1.0], [2.0]], requires_grad=True)
        >>> expand(unique, Expansion.of(torch.tensor([0, 0, 1]), 2)).sum().backward()
        >>> unique.grad.flatten().tolist()
        [2.0, 1.0]
    """
    found: torch.Tensor = _Expand.apply(rows.flatten(1), by)  # type: ignore[no-untyped-call]
    return found.view(len(by), *rows.shape[1:])


class _Expand(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, by: Expansion) -> torch.Tensor:
        ctx.by = by
        return rows.index_select(0, by.index)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        (grad,), by = grads, ctx.by
        if by.ends is not None and grad.is_floating_point() and len(by):
            every = torch.arange(len(by), device=grad.device)
            summed = functional.embedding_bag(every, grad.contiguous(), by.ends, mode="sum", include_last_offset=True)
            return summed, None
        return grad.new_zeros(by.unique, grad.shape[1]).index_add_(0, by.index, grad), None
