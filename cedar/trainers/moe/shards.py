"""Optimizer state that never moves: every rank holds an equal slice of every row, for good (SYMI, arXiv 2504.19925).

A row is an expert, or a piece of the part of the model that all ranks hold. Gradients come to the slices and new
weights leave from them, one exchange each; where a row's weights lived before is never asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import nn
from torch.nn import functional

from cedar.trainers.common.compute import adamw
from cedar.trainers.common.group import Group
from cedar.trainers.common.tensors import Part as Saved
from cedar.trainers.moe.gradients import Hosts, slices
from cedar.trainers.moe.layer import SymiMoE
from cedar.trainers.moe.options import OptimizerOptions


class Shards:
    """Master weights and the two moments of AdamW, ``[rows, width]`` on every rank.

    Args:
        name: what bytes and seconds are counted under.
        size: values of a row; cut into slices of ``width = ceil(size / ranks)``, the last one filled up with zeros.
        weights: dtype of the weights that are computed with.
        options: how gradients travel (see ``OptimizerOptions``), and whether state stays in the memory of the host.
        device: where gradients come from and weights go to.

    ``rate`` and ``decay`` are factors of the learning rate and the weight decay, ``[rows, 1]`` or ``[rows, width]``.
    ``frozen`` maps rows to weights, ``[width]``, that stand for the master's: such rows are not updated.
    """

    def __init__(
        self, name: str, rows: int, size: int, group: Group, *, weights: torch.dtype,
        options: OptimizerOptions, device: torch.device,
    ) -> None:  # fmt: skip
        self.name, self.rows, self.size, self.group = name, rows, size, group
        self.exchange, self.device = options.exchange, device
        self.width = -(-size // group.size)
        self.dtype = weights
        kind = torch.promote_types(weights, torch.float32)
        self.wire = kind if weights == torch.float64 else getattr(torch, options.gradients)
        home = torch.device("cpu") if options.offload else device
        self.master, self.first, self.second = (torch.zeros(rows, self.width, dtype=kind, device=home) for _ in "mfs")
        self.rate, self.decay = (torch.ones(rows, 1, dtype=kind, device=home) for _ in "rd")
        self.frozen: dict[int, torch.Tensor] = {}

    def own(self, row: torch.Tensor) -> torch.Tensor:
        """This rank's slice of whole rows, ``[..., size]`` to ``[..., width]``."""
        padded = functional.pad(row, (0, self.width * self.group.size - self.size))
        return padded[..., self.group.rank * self.width : (self.group.rank + 1) * self.width]

    def fill(self, row: Callable[[int], torch.Tensor]) -> None:
        """Set the master weights from whole rows, each ``[size]``."""
        for at in range(self.rows):
            self.master[at] = self.own(row(at).to(self.master))

    def saved(self) -> dict[str, Saved]:
        """This rank's slices, without what they are filled up with, as parts of whole rows."""
        mine = max(0, min(self.width, self.size - self.group.rank * self.width))
        start = (0, min(self.group.rank * self.width, self.size))
        return {
            f"{self.name}.{kind}": Saved(getattr(self, kind)[:, :mine], (self.rows, self.size), start)
            for kind in ("master", "first", "second")
        }

    def collect(self, sums: torch.Tensor, hosts: Hosts) -> torch.Tensor:
        """This rank's slice of the gradients, added up over the ranks in their order. ``sums``: ``[held, size]``: of
        the rows that this rank holds, in the order of its ``hosts``; ``hosts``: the rows that each rank holds.

        Returns:
            ``[rows, width]``; zeros for rows that nobody holds.
        """
        padded = functional.pad(sums.to(self.wire), (0, self.width * self.group.size - self.size))
        total = torch.zeros(self.master.shape, dtype=self.master.dtype, device=sums.device)
        for rows, part in slices(padded, hosts, self.group, self.name, self.exchange):
            total[list(rows)] += part.to(total)
        return total.to(self.master.device)

    def update(
        self, gradients: torch.Tensor, *, rate: float, decay: float, betas: Sequence[float], eps: float, step: int,
        still: Iterable[int] = (),
    ) -> None:  # fmt: skip
        """A step of AdamW (arXiv 1711.05101), the ``step``-th from 1; ``still`` and frozen rows stay as they are."""
        kept = sorted({*still, *self.frozen})
        state = (self.master, self.first, self.second)
        before = [values[kept] for values in state]
        adamw(
            *state, gradients, rate=self.rate * rate, decay=self.decay * decay, betas=betas, eps=eps, step=step
        )  # fmt: skip
        for values, old in zip(state, before, strict=True):
            values[kept] = old

    def publish(self, hosts: Hosts) -> torch.Tensor:
        """The new weights of the rows that this rank holds from now on, ``[held, size]``."""
        group = self.group
        weights = self.master.to(self.dtype).to(self.device)
        for row, frozen in self.frozen.items():
            weights[row] = frozen
        mine = len(hosts[group.rank])
        out = weights[[row for rows in hosts for row in rows]]
        received = group.exchange(out, [len(rows) for rows in hosts], [mine] * group.size, f"weights {self.name}")
        whole = received.view(group.size, mine, self.width).transpose(0, 1).reshape(mine, -1)
        return whole[:, : self.size].contiguous()


class Part(Protocol):
    """Weights that gradients are summed for, and the shards that own them."""

    shards: Shards
    sums: torch.Tensor

    @property
    def hosts(self) -> Hosts: ...

    def add(self) -> None:
        """Add the gradients of a backward pass to ``sums``, ``[held, size]``."""

    def still(self, *, inactive: bool) -> Sequence[int]:
        """Rows that this step leaves as they are; ``inactive``: also those that no token reached."""

    def take(self, weights: torch.Tensor) -> None:
        """Compute with these weights from now on, ``[held, size]``, and start ``sums`` from zero."""


class ExpertPart:
    """The experts of one layer: their ranks change with its placement."""

    def __init__(self, layer: SymiMoE, *, dtype: torch.dtype, options: OptimizerOptions) -> None:
        self.layer = layer
        self.shards = Shards(
            layer.name, layer.count, layer.experts.size, layer.group, weights=dtype, options=options,
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

    def still(self, *, inactive: bool) -> Sequence[int]:
        if not self.layer.weights.requires_grad:
            return range(self.shards.rows)
        return [row for row, count in enumerate(self.layer.counts.tolist()) if not count] if inactive else ()

    def take(self, weights: torch.Tensor) -> None:
        trained = self.layer.weights.requires_grad
        self.layer.weights = nn.Parameter(weights, requires_grad=trained)  # another number of rows: another leaf
        rows = self.hosts[self.shards.group.rank]
        self.layer.still = frozenset(at for at, row in enumerate(rows) if row in self.shards.frozen)
        self.sums = torch.zeros_like(weights, dtype=self.shards.master.dtype, requires_grad=False)


class DensePart:
    """Parameters that all ranks hold, in one line, cut into rows of equal size.

    They become views of one tensor in the dtype that is computed with. ``parameters``: on the device where they
    compute; ``row``: values of a row, at most.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], group: Group, *, row: int, dtype: torch.dtype,
        options: OptimizerOptions,
    ) -> None:  # fmt: skip
        self.parameters = list(parameters)
        total = sum(p.numel() for p in self.parameters)
        rows = max(1, -(-total // row))
        size = -(-total // rows)
        device = self.parameters[0].device
        direct = replace(options, exchange="direct")  # every rank holds all of it: nobody could send less
        self.shards = Shards("dense", rows, size, group, weights=dtype, options=direct, device=device)
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
        self.shards.decay = self.shards.own(decay.view(rows, size)).to(self.shards.master, copy=True)
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

    def still(self, *, inactive: bool) -> Sequence[int]:
        return ()

    def take(self, weights: torch.Tensor) -> None:
        self.weights.copy_(weights.view(-1))
        self.sums.zero_()
