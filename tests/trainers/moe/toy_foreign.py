"""A model of another process, with two mixtures, and batches for it."""

import torch
from torch import nn

from cedar.nn import Router, SymiMoE


class Net(nn.Module):
    """Two mixtures of foreign experts: a convolution with a bias in each, and attention."""

    def __init__(self, group=None, slots=None, capacity=0.0):
        super().__init__()
        torch.manual_seed(3)

        def expert(number):
            return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.LayerNorm(9), nn.Linear(9, 6))

        def mixture():
            router, shared = Router(6, 4, top_k=2, renormalize=True), [nn.Linear(6, 6)]
            return SymiMoE(expert, router, group, slots=slots, capacity=capacity, shared=shared, aux_loss=0.02)

        self.first, self.mid, self.second = mixture(), nn.Linear(6, 6), mixture()

    def forward(self, x):
        return self.second(self.mid(x + self.first(x)).tanh())


def batch(step, rank=0, ranks=1):
    draw = torch.Generator().manual_seed(step)
    x, y = torch.randn(2, 8, 5, 6, generator=draw).double().unbind()
    share = slice(rank * 8 // ranks, (rank + 1) * 8 // ranks)
    return x[share], y[share]
