"""A GPT-style model, cut into stages of whole blocks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from cedar.trainers.common.digest import generator
from cedar.trainers.resilient.model.dropout import Place, dropout
from cedar.trainers.resilient.model.split import Embedding, Linear, WeightQueue, linear


@dataclass(frozen=True)
class Transformer:
    """The whole model.

    Args:
        vocabulary: tokens there are.
        length: tokens of a row.
        layers: blocks.
        width: of a token inside the model.
        heads: of attention.
        dropout: share of values that a block's two outputs lose while training.
        tied: the last stage uses the embeddings of the first.
    """

    vocabulary: int = 256
    length: int = 32
    layers: int = 4
    width: int = 32
    heads: int = 4
    dropout: float = 0.0
    tied: bool = True

    def blocks(self, stage: int, stages: int) -> range:
        """The blocks of a stage: runs whose lengths differ by one at most.

        Example:
            >>> [list(Transformer(layers=5).blocks(stage, 3)) for stage in range(3)]
            [[0], [1, 2], [3, 4]]
        """
        return range(self.layers * stage // stages, self.layers * (stage + 1) // stages)


class Stage(nn.Module):
    """The blocks of one stage; the first has the embeddings, too, the last the head.

    Parameters are named as in the whole model, and begin as their names and the seed tell: a model is the same however
    it is cut.

    Args:
        model: the whole.
        stage: which.
        stages: of how many.
        seed: of the weights.
    """

    def __init__(self, model: Transformer, stage: int, stages: int, seed: int = 0) -> None:
        super().__init__()
        self.model, self.first, self.last = model, stage == 0, stage == stages - 1
        self.queue = WeightQueue()
        if self.first or (self.last and model.tied):
            self.tokens = Embedding(model.vocabulary, model.width, self.queue)
        if self.first:
            self.positions = Embedding(model.length, model.width, self.queue)
        self.blocks = nn.ModuleDict({str(at): Block(model, at, self.queue) for at in model.blocks(stage, stages)})
        if self.last:
            self.norm = nn.LayerNorm(model.width)
            if not model.tied:
                self.head = Linear(model.width, model.vocabulary, self.queue, bias=False)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, 0.02, generator=generator("cpu", seed, name))
                elif "norm" in name and name.endswith("weight"):
                    parameter.fill_(1)

    def forward(self, x: torch.Tensor, place: Place | None) -> torch.Tensor:
        """Tokens, int64 ``[rows, length]``, or activations, ``[rows, length, width]``, to activations or logits."""
        if self.first:
            x = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks.values():
            x = block(x, place)
        if not self.last:
            return x
        x = self.norm(x)
        if self.model.tied:
            return linear(x, self.tokens.weight, None, self.queue)
        return self.head(x)  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and two linear layers, each behind a norm and beside a residual."""

    def __init__(self, model: Transformer, number: int, queue: WeightQueue) -> None:
        super().__init__()
        self.number, self.heads, self.share = number, model.heads, model.dropout
        self.norm_1, self.norm_2 = nn.LayerNorm(model.width), nn.LayerNorm(model.width)
        self.qkv = Linear(model.width, 3 * model.width, queue)
        self.out = Linear(model.width, model.width, queue)
        self.up = Linear(model.width, 4 * model.width, queue)
        self.down = Linear(4 * model.width, model.width, queue)

    def forward(self, x: torch.Tensor, place: Place | None) -> torch.Tensor:
        """``[rows, length, width]`` to the same."""
        rows, length, width = x.shape
        query, key, value = (
            part.view(rows, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm_1(x)).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        found = self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        x = x + dropout(found, self.share, f"blocks.{self.number}.out", place)
        found = self.down(functional.gelu(self.up(self.norm_2(x))))
        return x + dropout(found, self.share, f"blocks.{self.number}.down", place)
