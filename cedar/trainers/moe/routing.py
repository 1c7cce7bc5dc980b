"""The router: which experts a token goes to, with which weight, and what keeps experts in balance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

Score = Literal["softmax", "sigmoid"]


@dataclass(frozen=True)
class Routing:
    """Where tokens go.

    Args:
        experts: int64 ``[tokens, k]``.
        gates: ``[tokens, k]``: how much each expert's answer counts.
        shares: ``[tokens, experts]``: scores that add up to one, for the auxiliary loss.
        logits: ``[tokens, experts]``, for the z-loss.
    """

    experts: torch.Tensor
    gates: torch.Tensor
    shares: torch.Tensor
    logits: torch.Tensor


class Router(nn.Module):
    """Top-k of a linear map (arXiv 1701.06538). Scores are worked out in float32 at least.

    Args:
        width: of a token.
        experts: to choose from.
        top_k: experts per token.
        score: ``softmax`` over experts, or ``sigmoid`` of each (DeepSeek-V3, arXiv 2412.19437).
        renormalise: divide the gates of a token by their sum.

    ``bias``, float32 ``[experts]``, is added to the scores to choose by, never to the gates (loss-free balancing,
    arXiv 2408.15664). It starts at zero; ``balance`` moves it.
    """

    bias: torch.Tensor

    def __init__(
        self, width: int, experts: int, top_k: int = 1, score: Score = "softmax", *, renormalise: bool = False
    ) -> None:
        super().__init__()
        if not 1 <= top_k <= experts:
            raise ValueError(f"top_k is {top_k}: give 1 to {experts}, the number of experts")
        self.experts, self.top_k, self.score, self.renormalise = experts, top_k, score, renormalise
        self.weight = nn.Parameter(torch.empty(experts, width).uniform_(-(width**-0.5), width**-0.5))
        self.register_buffer("bias", torch.zeros(experts))

    def forward(self, tokens: torch.Tensor) -> Routing:
        """Route tokens ``[tokens, width]``."""
        wide = torch.promote_types(tokens.dtype, torch.float32)
        logits = tokens.to(wide) @ self.weight.to(wide).T
        if self.score == "softmax":
            scores = shares = logits.softmax(-1)
        else:
            scores = logits.sigmoid()
            shares = scores / scores.sum(-1, keepdim=True)
        experts = (scores.detach() + self.bias).topk(self.top_k, dim=-1).indices
        gates = scores.gather(1, experts)
        if self.renormalise:
            gates = gates / gates.sum(-1, keepdim=True)
        return Routing(experts, gates, shares, logits)

    @torch.no_grad()
    def balance(self, counts: torch.Tensor, rate: float) -> None:
        """Move the bias by ``rate``: up for experts with fewer tokens than the mean, down for those with more."""
        counts = counts.to(self.bias.device)
        total = counts.sum()
        self.bias += rate * torch.sign(total - counts * len(counts)).to(self.bias)


def auxiliary_loss(routing: Routing, counts: torch.Tensor) -> torch.Tensor:
    """This rank's part of experts * sum over experts of (share of copies) * (mean score), over all ranks' tokens.

    The loss of Switch Transformers (arXiv 2101.03961), 1 where experts are in balance. The parts of ranks add up.

    Args:
        routing: of this rank's tokens.
        counts: int64 ``[ranks, experts]``.
    """
    experts = counts.shape[1]
    copies = counts.sum().clamp(min=1).to(routing.shares.device)
    often = counts.sum(0).to(routing.shares) / copies
    tokens = copies / routing.experts.shape[1]
    return experts * (often * routing.shares.sum(0)).sum() / tokens


def z_loss(routing: Routing, counts: torch.Tensor) -> torch.Tensor:
    """This rank's part of the mean squared log-sum-exp of the logits (arXiv 2202.08906)."""
    tokens = counts.sum().clamp(min=1).to(routing.logits) / routing.experts.shape[1]
    return routing.logits.logsumexp(-1).square().sum() / tokens
