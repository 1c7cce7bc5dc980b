"""Taking rows by index, with a gradient that takes rows by index too: no scatter, so sums have one order."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional


def take_rows(rows: torch.Tensor, index: torch.Tensor, back: torch.Tensor) -> torch.Tensor:
    """``rows[index]``, where ``back`` says which results came from each row.

    Args:
        rows: ``[n, width]``.
        index: int64 ``[m]``; ``n`` stands for a row of zeros.
        back: int64 ``[n, k]``: the places in ``index`` that hold each row; ``m`` stands for none. Its gradient is the
            sum over k, in that order.

    Returns:
        ``[m, width]``.

    Example:
        >>> rows = torch.tensor([[1.0], [2.0]], requires_grad=True)
        >>> taken = take_rows(rows, torch.tensor([1, 0, 1]), torch.tensor([[1, 3], [0, 2]]))
        >>> taken.sum().backward()
        >>> taken.flatten().tolist(), rows.grad.flatten().tolist()
        ([2.0, 1.0, 2.0], [1.0, 2.0])
    """
    taken: torch.Tensor = _Take.apply(rows, index, back)  # type: ignore[no-untyped-call]
    return taken


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, index: torch.Tensor, back: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(back)
        return functional.pad(rows, (0, 0, 0, 1)).index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (back,) = ctx.saved_tensors
        (grad,) = grads
        found = functional.pad(grad, (0, 0, 0, 1)).index_select(0, back.flatten()).view(*back.shape, grad.shape[1])
        total = found[:, 0]
        for at in range(1, found.shape[1]):
            total = total + found[:, at]
        return total, None, None
