"""Train a small language model of Mixtral's shape on text: SwiGLU experts, two for each token, on any number of ranks.

python examples/mixtral_text.py tinyshakespeare.txt
torchrun --nproc-per-node 2 examples/mixtral_text.py tinyshakespeare.txt     # the same batches, half of each rank
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional

from cedar.nn import Router, SymiMoE, SymiOptimizer, SymiOptions, router_losses, whole_state_dict
from cedar.trainers.common.compute import Attention
from cedar.trainers.common.data import token_rows
from cedar.trainers.common.group import Group
from cedar.trainers.common.launch import connected

WIDTH, HIDDEN, LENGTH, BATCH, EXPERTS, SLOTS = 32, 64, 32, 16, 4, 8


class SwiGLU(nn.Module):
    """An expert: any module from tokens to tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention, then experts, each behind a norm and next to a residual."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.attention = Attention(WIDTH, heads=4)
        router = Router(WIDTH, EXPERTS, top_k=2, renormalize=True)
        self.experts = SymiMoE(
            lambda _: SwiGLU(), router, group, slots=SLOTS // group.size, capacity=1.25, aux_loss=0.01
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.experts(self.norms[1](x))  # type: ignore[no-any-return]


def make_model(group: Group, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Bytes in, scores of the next byte out."""
    torch.manual_seed(0)  # on all ranks alike
    blocks = [Block(group) for _ in range(2)]
    return nn.Sequential(nn.Embedding(256, WIDTH), *blocks, nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 256)).to(dtype)


def train(path: str, steps: int, group: Group | None = None, dtype: torch.dtype = torch.float32) -> list[float]:
    """The loss of each step, over all ranks."""
    group = group or Group()
    model = make_model(group, dtype)
    optimizer = SymiOptimizer(model, SymiOptions(rate=3e-3, clip=1.0))
    rows = token_rows(path, LENGTH + 1).shuffle(seed=0).batch(BATCH, last="drop")
    losses: list[float] = []
    with rows.loader(rank=0, world=1, subgroup=True, format="torch") as batches:
        for batch in batches:
            share = BATCH // group.size
            tokens = batch["tokens"].long()[group.rank * share : (group.rank + 1) * share]
            scores = model(tokens[:, :-1])
            loss = functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
            (loss + router_losses(model)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(float(group.add(loss.detach()[None], "loss")) / group.size)
            if len(losses) == steps:
                break
    experts = [name for name in whole_state_dict(model) if ".experts.experts." in name]
    if group.rank == 0:
        replicas = [layer.placement.replicas for layer in optimizer.layers]
        print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}; replicas {replicas}; {len(experts)} weights of experts")
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("--steps", type=int, default=60)
    chosen = parser.parse_args()
    with connected():
        train(chosen.text, chosen.steps)
