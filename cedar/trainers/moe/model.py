"""A GPT-style model whose blocks consist of attention and a mixture of experts."""

from __future__ import annotations

import torch
from torch import nn

from cedar.trainers.common.compute import Attention, generator
from cedar.trainers.common.group import Group
from cedar.trainers.moe.experts import FeedForward, Router
from cedar.trainers.moe.layer import SymiMoE
from cedar.trainers.moe.options import ExpertOptions, ModelOptions


class Dropout(nn.Module):
    """Dropout whose mask depends only on seed, step and row of the global batch, so that a step can be replayed on any
    number of ranks. ``share``: dropout probability; ``name``: identifies the layer.
    """

    def __init__(self, share: float, name: str) -> None:
        super().__init__()
        self.share, self.name = share, name
        self.seed = self.step = 0
        self.rows = range(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply dropout to ``x``, ``[rows, ...]``, in training."""
        if not self.training or not self.share:
            return x
        masks = [
            torch.rand(x.shape[1:], generator=generator("cpu", self.seed, self.step, self.name, row)) >= self.share
            for row in self.rows
        ]
        if not masks:
            return x
        return x * torch.stack(masks).to(x) / (1 - self.share)


def mixture(width: int, options: ExpertOptions, group: Group, name: str = "experts", seed: int = 0) -> SymiMoE:
    """Build the layer that the options describe. An expert's initial weights depend only on seed, name and number."""

    def expert(number: int) -> FeedForward:
        return FeedForward(width, options.hidden, generator("cpu", seed, name, number))

    def always() -> nn.Module:
        up, down = nn.Linear(width, options.hidden, bias=False), nn.Linear(options.hidden, width, bias=False)
        return nn.Sequential(up, nn.GELU(), down)

    router = Router(width, options.experts, options.top_k, options.score, renormalize=options.renormalize_gates)
    return SymiMoE(
        expert, router, group, slots=options.slots, capacity=options.capacity, drop=options.drop, policy=options.follow,
        rule=options.rule, shared=[always() for _ in range(options.shared)], aux_loss=options.aux_loss,
        z_loss=options.z_loss, bias_rate=options.bias_rate, rates=options.rates, decays=options.decays, name=name,
    )  # fmt: skip


class Block(nn.Module):
    """Causal attention and experts, each pre-norm with a residual connection."""

    def __init__(self, model: ModelOptions, experts: ExpertOptions, group: Group, name: str, seed: int) -> None:
        super().__init__()
        width = model.width
        self.before, self.between = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.attention = Attention(width, model.heads)
        self.experts = mixture(width, experts, group, name, seed)
        self.drops = nn.ModuleList(Dropout(model.dropout, f"{name}.{part}") for part in ("attention", "experts"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[rows, length, width]`` to the same shape."""
        x = x + self.drops[0](self.attention(self.before(x)))
        answer: torch.Tensor = self.drops[1](self.experts(self.between(x)))
        return x + answer


class Model(nn.Module):
    """A language model that predicts the next token.

    Args:
        group: the ranks that share the experts.
        vocabulary: number of tokens in the vocabulary.
        seed: seed of the experts' initial weights.
    """

    def __init__(
        self, model: ModelOptions, experts: ExpertOptions, group: Group, *, length: int, vocabulary: int = 256,
        seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, model.width)
        self.places = nn.Parameter(torch.randn(length, model.width) * 0.02)
        self.blocks = nn.ModuleList(Block(model, experts, group, f"block{at}", seed) for at in range(model.layers))
        self.after = nn.LayerNorm(model.width, bias=False)
        self.logits = nn.Linear(model.width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map int64 tokens ``[rows, length]`` to logits ``[rows, length, vocabulary]``."""
        x = self.tokens(tokens) + self.places[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.logits(self.after(x))
        return logits

    def at(self, seed: int, step: int, rows: range) -> None:
        """Set the step and the rows whose dropout masks to use."""
        for module in self.modules():
            if isinstance(module, Dropout):
                module.seed, module.step, module.rows = seed, step, rows
