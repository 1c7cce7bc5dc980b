"""What a model hands to the decoupled optimizer: each layer's experts, and the rest, which all ranks hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

from cedar.trainers.common.group import Group
from cedar.trainers.moe.layer import SymiMoE
from cedar.trainers.moe.shards import Hosts, Shards


class Part(Protocol):
    """Weights that gradients are summed for, and the shards that own them."""

    shards: Shards
    sums: torch.Tensor

    @property
    def hosts(self) -> Hosts: ...

    def add(self) -> None:
        """Add the gradients of a backward pass to ``sums``, ``[held, size]``."""

    def idle(self) -> Sequence[int]:
        """Rows that no token reached in this step."""

    def take(self, weights: torch.Tensor) -> None:
        """Compute with these weights from now on, ``[held, size]``, and start ``sums`` from zero."""


class ExpertPart:
    """The experts of one layer: their ranks change with its placement.

    Args:
        layer: the layer.
        dtype: of the weights.
        gradients: in which gradients travel.
    """

    def __init__(self, layer: SymiMoE, *, dtype: torch.dtype, gradients: torch.dtype | None = None) -> None:
        self.layer = layer
        self.shards = Shards(
            layer.name, layer.count, layer.experts.size, layer.group, weights=dtype, gradients=gradients,
            device=layer.weights.device,
        )  # fmt: skip
        if layer.rates:
            self.shards.rate[:, 0] = torch.tensor(layer.rates)
        if layer.decays:
            self.shards.decay[:, 0] = torch.tensor(layer.decays)
        self.shards.fill(layer.experts.first)
        self.sums = torch.empty(0)

    @property
    def hosts(self) -> Hosts:
        return self.layer.placement.hosts

    def add(self) -> None:
        weights = self.layer.weights
        if weights.grad is not None:
            self.sums += weights.grad
            weights.grad = None

    def idle(self) -> Sequence[int]:
        return [row for row, count in enumerate(self.layer.counts.tolist()) if not count]

    def take(self, weights: torch.Tensor) -> None:
        self.layer.weights = nn.Parameter(weights)  # another number of rows: another leaf
        held = self.hosts[self.shards.group.rank]
        self.layer.still = frozenset(at for at, row in enumerate(held) if row in self.shards.frozen)
        self.sums = torch.zeros_like(weights, dtype=self.shards.master.dtype, requires_grad=False)


class DensePart:
    """Parameters that all ranks hold, in one line, cut into rows of equal size.

    They become views of one tensor in the dtype that is computed with.

    Args:
        parameters: on the device where they compute.
        group: the ranks.
        row: values of a row, at most.
        dtype: of the weights.
        gradients: in which gradients travel.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        group: Group,
        *,
        row: int,
        dtype: torch.dtype,
        gradients: torch.dtype | None = None,
        name: str = "dense",
    ) -> None:
        self.parameters = list(parameters)
        total = sum(p.numel() for p in self.parameters)
        rows = max(1, -(-total // row))
        size = -(-total // rows)
        device = self.parameters[0].device
        self.shards = Shards(name, rows, size, group, weights=dtype, gradients=gradients, device=device)
        kind = self.shards.master.dtype
        first, decay = (torch.zeros(rows * size, dtype=kind, device=device) for _ in range(2))
        self.weights = torch.zeros(rows * size, dtype=dtype, device=device)
        self.sums = torch.zeros(rows, size, dtype=kind, device=device)
        self.spans = []
        at = 0
        for p in self.parameters:
            span = slice(at, at + p.numel())
            at = span.stop
            self.spans.append(span)
            first[span] = p.detach().flatten().to(kind)
            decay[span] = float(p.dim() > 1)
            p.data = self.weights[span].view(p.shape)
        self.shards.master.copy_(self.shards.own(first.view(rows, size)))
        self.shards.decay = self.shards.own(decay.view(rows, size)).clone()
        self._hosts = (tuple(range(rows)),) * group.size

    @property
    def hosts(self) -> Hosts:
        return self._hosts

    def add(self) -> None:
        line = self.sums.view(-1)
        for p, span in zip(self.parameters, self.spans, strict=True):
            if p.grad is not None:
                line[span] += p.grad.flatten()
                p.grad = None

    def idle(self) -> Sequence[int]:
        return ()

    def take(self, weights: torch.Tensor) -> None:
        self.weights.copy_(weights.view(-1))
        self.sums.zero_()
