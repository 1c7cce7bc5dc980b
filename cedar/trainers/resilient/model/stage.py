"""A GPT-style model that is split into stages of whole blocks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from cedar.trainers.common.compute import Attention, generator, keyed


@dataclass(frozen=True)
class Transformer:
    """The settings of the whole model."""

    vocabulary: int = 256
    length: int = 32
    layers: int = 4
    width: int = 32  # size of a token's vector inside the model
    heads: int = 4
    dropout: float = 0.0  # probability of dropping a value, after attention and after the network of a block
    tied: bool = True  # the last stage uses the embeddings of the first


class Stage(nn.Module):
    """The blocks of one stage. The first stage also has the embeddings, and the last one the output layer.

    Parameters have the names that they would have in an unsplit model. Their initial values depend only on these names
    and the seed, so the model is the same for any number of stages.
    """

    def __init__(self, model: Transformer, stage: int, stages: int, seed: int = 0) -> None:
        super().__init__()
        self.model, self.first, self.last = model, stage == 0, stage == stages - 1
        with keyed("cpu", seed):  # torch initializes the weights here; they are replaced below
            self._make(range(model.layers * stage // stages, model.layers * (stage + 1) // stages))
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, 0.02, generator=generator("cpu", seed, name))
                elif "norm" not in name:
                    parameter.zero_()

    def _make(self, blocks: range) -> None:
        model = self.model
        if self.first or (self.last and model.tied):
            self.tokens = nn.Embedding(model.vocabulary, model.width)
        if self.first:
            self.positions = nn.Embedding(model.length, model.width)
        self.blocks = nn.ModuleDict({str(at): Block(model) for at in blocks})
        if self.last:
            self.norm = nn.LayerNorm(model.width)
            if not model.tied:
                self.head = nn.Linear(model.width, model.vocabulary, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map tokens, int64 ``[rows, length]``, or activations, ``[rows, length, width]``, to activations or logits."""
        if self.first:
            x = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks.values():
            x = block(x)
        if not self.last:
            return x
        x = self.norm(x)
        return functional.linear(x, self.tokens.weight if self.model.tied else self.head.weight)


class Block(nn.Module):
    """Attention and a two-layer network, each after a normalization and with a residual connection."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(model.width), nn.LayerNorm(model.width)
        self.attention = Attention(model.width, model.heads, bias=(True, True))
        self.up, self.down = nn.Linear(model.width, 4 * model.width), nn.Linear(4 * model.width, model.width)
        self.drop = nn.Dropout(model.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[rows, length, width]`` to the same shape."""
        x = x + self.drop(self.attention(self.norm_1(x)))
        answer: torch.Tensor = self.drop(self.down(functional.gelu(self.up(self.norm_2(x)))))
        return x + answer


def token_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy per token, in nats."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    return functional.cross_entropy(logits.to(wide).flatten(0, 1), targets.flatten())
