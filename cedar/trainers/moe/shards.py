"""Static optimizer shards: every rank permanently holds an equal slice of every row (SYMI, arXiv 2504.19925).

A row is an expert, or the concatenation of all replicated parameters. One exchange sends gradients to the slices, and
another sends new weights back, so optimizer state never moves with the experts. The model's parameters are
authoritative: before a step, slices adopt values that were loaded or changed since the last step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import reduce

import torch
from torch import nn
from torch.nn import functional

from cedar.trainers.common.group import Group
from cedar.trainers.moe.gradients import Hosts, slices, slices_from_one
from cedar.trainers.moe.layer import SymiMoE
from cedar.trainers.moe.options import OptimizerOptions


class Shards:
    """Master weights, of which every rank has ``[rows, width]``.

    Args:
        name: name under which bytes and seconds are counted.
        size: values of a row, split into slices of ``width = ceil(size / ranks)``; the last one is padded with zeros.
        weights: dtype of the weights that the model computes with.
        options: gradient dtype (see ``OptimizerOptions``), and whether state stays in host memory.
        device: device of gradients and weights.
        widths: widths of the parts of a slice that the optimizer treats as parameters; None: a row's slice is one.

    ``slices`` are these parts, views of ``master``, for a torch optimizer. ``frozen`` maps slice indices to weights
    that replace the master's.
    """

    def __init__(
        self, name: str, rows: int, size: int, group: Group, *, weights: torch.dtype,
        options: OptimizerOptions, device: torch.device, widths: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        self.name, self.rows, self.size, self.group = name, rows, size, group
        self.options, self.widths = options, widths
        self.width = -(-size // group.size)
        self.frozen: dict[int, torch.Tensor] = {}
        self.master = torch.zeros(rows, self.width)
        self.slices = [nn.Parameter(part) for part in self.parts(self.master)]
        self.move(weights, device)

    def move(self, weights: torch.dtype, device: torch.device) -> None:
        """Change the dtype and device of the computed weights; masters are at least float32."""
        self.dtype, self.device = weights, device
        kind = torch.promote_types(weights, torch.float32)
        self.wire = kind if weights == torch.float64 else getattr(torch, self.options.gradients)
        self.master = self.master.to(torch.device("cpu") if self.options.offload else device, kind)
        for part, values in zip(self.slices, self.parts(self.master), strict=True):
            part.data = values

    def parts(self, values: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return views of a tensor shaped like ``master``, one for each of ``slices``."""
        return values.unbind() if self.widths is None else torch.split(values[0], list(self.widths))

    def collect(self, sums: torch.Tensor, hosts: Hosts) -> torch.Tensor:
        """Return this rank's slice of the gradients, summed over ranks in order. ``sums``: ``[held, size]``: gradients
        of this rank's rows, in the order of ``hosts``; ``hosts``: the rows that each rank holds.

        Returns:
            ``[rows, width]``; zeros for rows that are on no rank.
        """
        total = torch.zeros(self.master.shape, dtype=self.master.dtype, device=sums.device)
        for rows, part in slices(self._padded(sums.to(self.wire)), hosts, self.group, f"gradients {self.name}"):
            total[list(rows)] += part.to(total)
        return total.to(self.master.device)

    def adopt(self, values: torch.Tensor, hosts: Hosts, rows: Collection[int]) -> None:
        """Adopt rows from the ranks that have them. If a value equals the rounded master, keep the master's precision.
        ``values``: ``[held, size]``.
        """
        for taken, part in slices_from_one(self._padded(values), hosts, rows, self.group, f"weights {self.name}"):
            at = list(taken)
            self.master[at] = changed(self.master[at], part)

    def _padded(self, rows: torch.Tensor) -> torch.Tensor:
        return functional.pad(rows, (0, self.width * self.group.size - self.size))

    def publish(self, hosts: Hosts) -> torch.Tensor:
        """Return the new weights of the rows that this rank now holds, ``[held, size]``."""
        group = self.group
        weights = self.master.to(self.dtype, copy=True).to(self.device)
        parts = self.parts(weights)
        for at, frozen in self.frozen.items():
            parts[at].copy_(frozen)
        mine = len(hosts[group.rank])
        out = weights[[row for rows in hosts for row in rows]]
        received = group.exchange(out, [len(rows) for rows in hosts], [mine] * group.size, f"weights {self.name}")
        whole = received.view(group.size, mine, self.width).transpose(0, 1).reshape(mine, -1)
        return whole[:, : self.size].contiguous()


def changed(master: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the masters, but where a master does not round to the weight, return the weight.

    Examples:
        >>> master = torch.tensor([1.001953125, 2.0])  # the first one is 1 in bfloat16
        >>> changed(master, torch.tensor([1.0, 3.0], dtype=torch.bfloat16)).tolist()
        [1.001953125, 3.0]
    """
    weights = weights.to(master.device)
    return torch.where(weights == master.to(weights.dtype), master, weights.to(master.dtype))


def widest(parameters: Sequence[nn.Parameter]) -> torch.dtype:
    """Return the dtype that can represent the values of all parameters."""
    return reduce(torch.promote_types, (p.dtype for p in parameters))


class ExpertPart:
    """The experts of a layer. Their ranks depend on the layer's placement."""

    def __init__(self, layer: SymiMoE, options: OptimizerOptions, dtype: torch.dtype | None) -> None:
        self.layer, self.dtype = layer, dtype
        weights = layer.weights
        self.shards = Shards(
            layer.name, layer.count, layer.experts.size, layer.group, weights=weights.dtype, options=options,
            device=weights.device,
        )  # fmt: skip
        self.adopt(range(layer.count))
        self.sent: torch.Tensor | None = weights.detach().clone()
        if dtype is not None:
            self._set_weights(self.sent.to(dtype))

    @property
    def parameters(self) -> Sequence[nn.Parameter]:
        return [self.layer.weights]

    @property
    def hosts(self) -> Hosts:
        return self.layer.placement.hosts

    def owned(self) -> Iterator[tuple[nn.Parameter, dict[int, str], int]]:
        """Yield the parameter, the names of its slices by index in ``shards.slices``, and the values per row."""
        names = {row: f"{self.layer.name}.{row}" for row in range(self.shards.rows)}
        yield self.layer.weights, names, self.shards.size

    def trained(self) -> Sequence[bool]:
        """Return whether this rank has a gradient. In a replay, frozen experts count if the layer got any token."""
        weights = self.layer.weights
        replays = bool(self.shards.frozen) and weights.requires_grad and bool(self.layer.counts.sum())
        return [weights.grad is not None or replays]

    def gradients(self) -> torch.Tensor:
        """Return this rank's gradients, ``[held, size]``."""
        weights = self.layer.weights
        return torch.zeros_like(weights) if weights.grad is None else weights.grad

    def odd(self) -> Sequence[bool]:
        """Return, for each row, whether other code than the optimizer changed it on this rank."""
        weights, held = self.layer.weights.detach(), self.hosts[self.shards.group.rank]
        flags = [False] * self.shards.rows
        same = self.sent is not None and self.sent.shape == weights.shape and self.sent.dtype == weights.dtype
        rows = (weights != self.sent.to(weights.device)).any(1).tolist() if same else [True] * len(held)  # type: ignore[union-attr]
        for row, differs in zip(held, rows, strict=True):
            flags[row] = differs
        return flags

    def adopt(self, rows: Collection[int]) -> None:
        """Adopt rows that other code than the optimizer changed."""
        if rows:
            self.shards.adopt(self.layer.weights.detach(), self.hosts, rows)

    def still(self) -> Sequence[int]:
        """Return the slices that a step must not change."""
        inactive = self.shards.options.skip_inactive
        return [row for row, count in enumerate(self.layer.counts.tolist()) if inactive and not count]

    def publish(self) -> None:
        """Copy the masters' weights to the parameters."""
        self._set_weights(self.shards.publish(self.hosts))
        rows = self.hosts[self.shards.group.rank]
        self.layer.still = frozenset(at for at, row in enumerate(rows) if row in self.shards.frozen)

    def _set_weights(self, weights: torch.Tensor) -> None:
        self.layer.hold(weights)
        self.sent = weights
        self.shards.move(weights.dtype, weights.device)
        if self.dtype is not None:
            self.layer.weights.grad_dtype = self.shards.master.dtype


class DensePart:
    """Replicated parameters, concatenated and split so that each rank has a slice of each.

    ``named``: the parameters with their names, all on one device.
    """

    def __init__(
        self, named: Sequence[tuple[str, nn.Parameter]], group: Group, options: OptimizerOptions, name: str,
        dtype: torch.dtype | None,
    ) -> None:  # fmt: skip
        self.names, self.parameters = [name for name, _ in named], [p for _, p in named]
        widths = [-(-p.numel() // group.size) for p in self.parameters]
        self.shards = Shards(
            name, 1, sum(widths) * group.size, group, weights=widest(self.parameters), options=options,
            device=self.parameters[0].device, widths=widths,
        )  # fmt: skip
        self.hosts: Hosts = ((0,),) * group.size
        self.adopt(())
        for p in self.parameters if dtype is not None else ():
            p.data = p.data.to(dtype)
        self.shards.move(widest(self.parameters), self.shards.device)
        for p in self.parameters if dtype is not None else ():
            p.grad_dtype = self.shards.master.dtype

    def spans(self, line: torch.Tensor) -> Sequence[torch.Tensor]:
        """Split ``[ranks, width]`` into one part per parameter."""
        return torch.split(line, list(self.shards.widths or ()), 1)

    def owned(self) -> Iterator[tuple[nn.Parameter, dict[int, str], int]]:
        for at, (p, name) in enumerate(zip(self.parameters, self.names, strict=True)):
            yield p, {at: name}, p.numel()

    def trained(self) -> Sequence[bool]:
        """Return, for each parameter, whether this rank has a gradient."""
        return [p.grad is not None for p in self.parameters]

    def gradients(self) -> torch.Tensor:
        size = self.shards.group.size
        line = torch.zeros(size, self.shards.width, dtype=self.shards.master.dtype, device=self.shards.device)
        for p, part in zip(self.parameters, self.spans(line), strict=True):
            if p.grad is not None:
                values = p.grad.to_dense().flatten()
                part.copy_(functional.pad(values, (0, part.numel() - len(values))).view(part.shape))
        return line.view(1, -1)

    def odd(self) -> Sequence[bool]:
        return ()

    def adopt(self, rows: Collection[int]) -> None:
        """Adopt all changes, without communication, since each rank has its slice of every parameter."""
        rank = self.shards.group.rank
        for p, part in zip(self.parameters, self.shards.slices, strict=True):
            own = p.detach().flatten()[rank * len(part) : (rank + 1) * len(part)]
            part.data[: len(own)] = changed(part.data[: len(own)], own)

    def still(self) -> Sequence[int]:
        return ()

    @torch.no_grad()
    def publish(self) -> None:
        line = self.shards.publish(self.hosts).view(self.shards.group.size, -1)
        for p, part in zip(self.parameters, self.spans(line), strict=True):
            p.copy_(part.reshape(-1)[: p.numel()].view(p.shape))


Part = ExpertPart | DensePart  # model parameters, and the shards with their optimizer state
