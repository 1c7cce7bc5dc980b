"""Many small feed-forward networks at once: one grouped product where torch has it, else one after the other."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch.nn import functional

_ALIGNED = 16  # bytes: what grouped products ask of a row


def grouped_products(device: torch.device, dtype: torch.dtype, *widths: int) -> bool:
    """Whether torch multiplies many matrices of these widths at once on this device.

    On the CPU torch has the function, but it loops inside: the plain loop does as well, and takes any width and dtype.
    """
    if device.type != "cuda" or not hasattr(functional, "grouped_mm"):
        return False
    fits = all(width * dtype.itemsize % _ALIGNED == 0 for width in widths)
    return fits and dtype == torch.bfloat16 and torch.cuda.get_device_capability(device) >= (8, 0)


def expert_outputs(
    tokens: torch.Tensor,
    rows: Sequence[int],
    weights: torch.Tensor,
    hidden: int,
    *,
    still: Collection[int] = (),
    grouped: bool | None = None,
) -> torch.Tensor:
    """``gelu(x @ up) @ down`` of each token's expert.

    Args:
        tokens: ``[sum(rows), width]``, expert by expert.
        rows: of each expert; may be 0.
        weights: ``[experts, 2 * width * hidden]``: up, ``[width, hidden]``, then down, ``[hidden, width]``.
        hidden: units between the two products.
        still: experts whose weights need no gradient; the loop does not work it out.
        grouped: whether to use torch's grouped products; None: where they pay.

    Example:
        >>> weights = torch.ones(2, 2 * 3 * 4)
        >>> expert_outputs(torch.zeros(5, 3), [2, 3], weights, hidden=4).shape
        torch.Size([5, 3])
    """
    width = tokens.shape[1]
    if weights.shape[1] != 2 * width * hidden:
        raise ValueError(
            f"weights of {weights.shape[1]} values do not fit a width of {width} and {hidden} hidden units"
        )
    up = weights[:, : width * hidden].view(-1, width, hidden)
    down = weights[:, width * hidden :].view(-1, hidden, width)
    if grouped is None:
        grouped = grouped_products(tokens.device, tokens.dtype, width, hidden)
    if grouped:
        ends = torch.tensor(rows, device=tokens.device).cumsum(0).to(torch.int32)
        inner = functional.gelu(functional.grouped_mm(tokens, up, offs=ends))
        return functional.grouped_mm(inner, down, offs=ends)
    pieces = []
    for expert, piece in enumerate(torch.split(tokens, list(rows))):
        first, second = up[expert], down[expert]
        if expert in still:
            first, second = first.detach(), second.detach()
        pieces.append(functional.gelu(piece @ first) @ second)
    return torch.cat(pieces)
