"""Pooling of lists by attention, alone or behind a transformer layer: on padded lists, of unique rows if there are."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from cedar.trainers.common.attention import Attention


class SequencePooling(nn.Module):
    """Lists of vectors to one vector each; an empty list gives zeros.

    Args:
        width: of a vector.
        heads: of the transformer layer's attention; 0 leaves that layer out.
        dropout: of the transformer layer.
    """

    def __init__(self, width: int, heads: int = 0, dropout: float = 0.0) -> None:
        super().__init__()
        self.layer = TransformerLayer(width, heads, dropout) if heads else None
        self.query = nn.Linear(width, 1, bias=False)  # a bias would add the same to all scores of a list

    def forward(self, values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """``[total, width]`` and the lists' offsets to ``[lists, width]``."""
        lengths = offsets.diff()
        longest = int(lengths.max()) if len(lengths) else 0
        if longest == 0:
            return values.new_zeros(len(lengths), values.shape[1]) + values.sum() * 0
        there = torch.arange(longest, device=values.device) < lengths[:, None]
        padded, full = _padded(values, lengths, longest, there)
        if self.layer is not None:
            padded = self.layer(padded, None if full else there)
        scores = self.query(padded)[..., 0]
        if not full:
            scores = scores.masked_fill(~there, torch.finfo(scores.dtype).min)
        shares = torch.softmax(scores, 1)
        if not full:
            shares = shares * there
        found: torch.Tensor = torch.bmm(shares[:, None].to(padded.dtype), padded)[:, 0]
        return found


class TransformerLayer(nn.Module):
    """Attention and an MLP of twice the width, each with a residual, norms before them.

    Args:
        width: of a vector.
        heads: of attention.
        dropout: of what both add.
    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, bias=(False, True), causal=False)
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, rows: torch.Tensor, there: torch.Tensor | None) -> torch.Tensor:
        """``[lists, length, width]``; places that are not ``there`` are not attended to."""
        mask = None
        if there is not None:  # an empty list attends to its padding, and is left out later
            mask = (there | ~there.any(1, keepdim=True))[:, None, None, :]
        rows = rows + self.drop(self.attention(self.before(rows), mask))
        found: torch.Tensor = rows + self.drop(self.outer(functional.relu(self.inner(self.between(rows)))))
        return found


def _padded(
    values: torch.Tensor, lengths: torch.Tensor, longest: int, there: torch.Tensor
) -> tuple[torch.Tensor, bool]:
    """(``[lists, longest, width]`` with zeros behind short lists, whether there are none)."""
    if len(values) == len(lengths) * longest:
        return values.view(len(lengths), longest, -1), True
    places = there.flatten().nonzero()[:, 0]
    flat = values.new_zeros(len(lengths) * longest, values.shape[1]).index_copy(0, places, values)
    return flat.view(len(lengths), longest, -1), False
