"""Self-attention, as the models of all trainers have it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    """Every place of a row looks at the others.

    Args:
        width: of a place's vector.
        heads: that see it apart; they divide the width.
        bias: of the map to queries, keys and values, and of the map of what was seen.
        causal: a place looks at itself and at those before it.
    """

    def __init__(
        self, width: int, heads: int, *, bias: tuple[bool, bool] = (False, False), causal: bool = True
    ) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.mixed = nn.Linear(width, 3 * width, bias=bias[0])
        self.out = nn.Linear(width, width, bias=bias[1])

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """``[rows, length, width]`` to the same; ``mask``: which places may be looked at."""
        rows, length, width = x.shape
        queries, keys, values = (
            part.view(rows, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.mixed(x).split(width, dim=-1)
        )
        seen = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=self.causal)
        found: torch.Tensor = self.out(seen.transpose(1, 2).reshape(rows, length, width))
        return found
