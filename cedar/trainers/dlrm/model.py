"""The DLRM: bottom MLP, embedding bags and sequences, interaction, top MLP; also its tables and optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice, pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from cedar.trainers.common.compute import Attention
from cedar.trainers.common.group import Group
from cedar.trainers.dlrm.embeddings import DedupEmbeddings
from cedar.trainers.dlrm.hot import Frequency, frequencies
from cedar.trainers.dlrm.inputs import Feature, Inputs
from cedar.trainers.dlrm.options import FeatureOptions, ModelOptions, OptimizerOptions, Options
from cedar.trainers.dlrm.sharding import FeatureStatistics, look
from cedar.trainers.dlrm.spread import widths_of
from cedar.trainers.dlrm.unique import Expansion, on_lists, ranges, side_by_side


class SequencePooling(nn.Module):
    """Pools each list of vectors into one vector by attention, and an empty list into zeros. ``heads``: attention heads
    of the transformer layer; 0 omits the layer.
    """

    def __init__(self, width: int, heads: int = 0, dropout: float = 0.0) -> None:
        super().__init__()
        self.layer = TransformerLayer(width, heads, dropout) if heads else None
        self.query = nn.Linear(width, 1, bias=False)  # the softmax over a list would cancel a bias

    def forward(self, values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Map ``[total, width]`` and the lists' offsets to ``[lists, width]``. Lists of equal length are processed
        together, which avoids padding.
        """
        lengths, width = offsets.diff(), values.shape[1]
        order = torch.argsort(lengths, stable=True)
        sizes, counts = torch.unique_consecutive(lengths[order], return_counts=True)
        runs = list(zip(counts.tolist(), sizes.tolist(), strict=True))
        if len(runs) > 1:
            values = values.index_select(0, ranges(offsets[order], lengths[order])[0])
        if self.layer is not None:
            values = self.layer(values, runs)
        scores, pooled = self.query(values)[:, 0], [values.new_zeros(0, width)]
        each = [n * length for n, length in runs]
        for part, score, (n, length) in zip(torch.split(values, each), torch.split(scores, each), runs, strict=True):
            shares = torch.softmax(score.view(n, length), 1)
            pooled.append(torch.bmm(shares[:, None].to(part.dtype), part.view(n, length, width))[:, 0])
        return torch.cat(pooled).index_select(0, torch.argsort(order))


class TransformerLayer(nn.Module):
    """Pre-norm self-attention and an MLP of twice the width, each with a residual connection."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, bias=(False, True), causal=False)
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, rows: torch.Tensor, runs: Sequence[tuple[int, int]]) -> torch.Tensor:
        """Map ``[total, width]`` to the same shape; see ``Attention`` for ``runs``."""
        rows = rows + self.drop(self.attention(self.before(rows), runs))
        encoded: torch.Tensor = rows + self.drop(self.outer(functional.relu(self.inner(self.between(rows)))))
        return encoded


class Dot(nn.Module):
    """Map ``[rows, n, width]`` to the dot products of all pairs of the n vectors. ``first``: also output the first
    vector, which comes from the dense features.
    """

    def __init__(self, n: int, width: int, *, first: bool) -> None:
        super().__init__()
        self.first = first
        self.size = n * (n - 1) // 2 + (width if first else 0)
        pairs = torch.tril_indices(n, n, -1)
        places = torch.full((n, n), pairs.shape[1])  # by default, index of the zero that follows the last pair
        places[pairs[0], pairs[1]] = places[pairs[1], pairs[0]] = torch.arange(pairs.shape[1])
        self.register_buffer("pairs", pairs[0] * n + pairs[1], persistent=False)
        self.register_buffer("places", places.flatten(), persistent=False)
        self.pairs: torch.Tensor
        self.places: torch.Tensor

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        products: torch.Tensor = _Products.apply(rows, self.pairs, self.places, self.first)  # type: ignore[no-untyped-call]
        return products


class _Products(torch.autograd.Function):
    """Pairwise products. As they are symmetric, one multiplication computes the gradient; autograd would use two."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, pairs: torch.Tensor, places: torch.Tensor, first: bool) -> torch.Tensor:
        ctx.save_for_backward(rows, places)
        ctx.start = start = rows.shape[2] if first else 0
        products = torch.bmm(rows, rows.transpose(1, 2)).flatten(1)
        joined = products.new_empty(len(rows), start + len(pairs))
        joined[:, :start] = rows[:, 0, :start]
        joined[:, start:] = products.index_select(1, pairs)
        return joined

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (rows, places), grad = ctx.saved_tensors, grads[0].to(ctx.saved_tensors[0].dtype)
        n, start = rows.shape[1], ctx.start
        both = functional.pad(grad[:, start:], (0, 1)).index_select(1, places).view(-1, n, n)
        rows_grad = torch.bmm(both, rows)
        rows_grad[:, 0, :start] += grad[:, :start]
        return rows_grad, None, None, None


class Cross(nn.Module):
    """DCN-v2 layers x' = x0 * (U V x + b) + x over a row's concatenated vectors."""

    def __init__(self, n: int, width: int, layers: int, rank: int) -> None:
        super().__init__()
        self.size = n * width
        self.down = nn.ModuleList(nn.Linear(self.size, rank, bias=False) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(rank, self.size) for _ in range(layers))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        start = rows.flatten(1)
        crossed = start
        for down, up in zip(self.down, self.up, strict=True):
            crossed = start * up(down(crossed)) + crossed
        return crossed


def mlp(sizes: list[int], *, end: bool) -> nn.Sequential:
    """Return linear layers with ReLU in between, and after the last one if ``end`` is set."""
    layers: list[nn.Module] = []
    for at, (before, after) in enumerate(pairwise(sizes)):
        layers.append(nn.Linear(before, after))
        if end or at < len(sizes) - 2:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


Lookup = Callable[[Inputs], list[torch.Tensor]]


class Model(nn.Module):
    """A DLRM. Apart from rounding, its output does not depend on which features are deduplicated.

    Args:
        features: options in the order of the inputs' features.
        dense: number of dense features.
        lookup: looks up and sums table rows; see ``DedupEmbeddings.rows``.
    """

    def __init__(self, options: ModelOptions, features: Sequence[FeatureOptions], dense: int, lookup: Lookup) -> None:
        super().__init__()
        self.options, self.features, self.lookup = options, tuple(features), lookup
        width = options.width
        self.bottom = mlp([dense, *options.bottom, width], end=True) if dense else None
        heads = {"attention": 0, "transformer": options.heads}
        widths = [feature.width or width for feature in features]
        self.pooling = nn.ModuleDict(
            {
                f"at {at}": SequencePooling(widths[at], heads[feature.pooling], options.dropout)
                for at, feature in enumerate(features)
                if feature.sequence
            }
        )
        self.fit = nn.ModuleDict(  # mixed dimensions (arXiv 1909.11810): project to the common width
            {f"at {at}": nn.Linear(own, width, bias=False) for at, own in enumerate(widths) if own != width}
        )
        n = len(features) + bool(dense)
        self.interaction: Dot | Cross = (
            Dot(n, width, first=bool(dense) or n == 1)
            if options.interaction == "dot"
            else Cross(n, width, options.cross, options.rank)
        )
        self.top = mlp([self.interaction.size, *options.top, 1], end=False)

    def forward(self, inputs: Inputs) -> torch.Tensor:
        """Return logits, ``[rows]``."""
        looked_up = zip(inputs.features, self.lookup(inputs), strict=True)
        parts = [self._pooled(at, feature, rows) for at, (feature, rows) in enumerate(looked_up)]
        if self.bottom is not None:
            parts = [(self.bottom(inputs.dense), None), *parts]
        kind = parts[0][0].dtype
        rows = side_by_side([part.to(kind) for part, _ in parts], [by for _, by in parts])
        logits: torch.Tensor = self.top(self.interaction(rows))[:, 0]
        return logits

    def _pooled(self, at: int, feature: Feature, rows: torch.Tensor) -> tuple[torch.Tensor, Expansion | None]:
        option, by = self.features[at], feature.by
        if option.pooling == "mean":
            rows = rows / feature.lengths.clamp(min=1)[:, None].to(rows.dtype)
        if option.sequence:
            module = self.pooling[f"at {at}"]
            rows, by = on_lists(module, rows, feature.bags.offsets, by, anyway=self.options.repeat_dropout)
        return (self.fit[f"at {at}"](rows) if f"at {at}" in self.fit else rows), by


SAMPLE = 4  # number of batches from which statistics are computed
COUNTED = 32  # batches for row frequencies; the estimate of touched rows is within 2% (10% with only 4 batches)


def looked_at(
    options: Options, group: Group, sample: Callable[[int], Iterator[Inputs]]
) -> tuple[list[FeatureStatistics], dict[str, Frequency]]:
    """Compute statistics of the first global batches, for sharding; none if a single rank has all rows in memory."""
    if group.size == 1 and not options.tables.fast:
        return [], {}
    batches = sample(COUNTED if options.tables.fast or options.tables.sharding in ("hot", "auto") else SAMPLE)
    first = list(islice(batches, SAMPLE))
    counts = frequencies(chain(first, batches), options.features, group.size)
    return look(first, options.features), counts


def tables_of(
    options: Options, group: Group, statistics: Sequence[FeatureStatistics],
    counted: Mapping[str, Frequency], device: torch.device,
) -> tuple[DedupEmbeddings, list[str]]:  # fmt: skip
    """Return the tables, and notes about choices. All ranks have the same statistics and compute the same plan."""
    chosen, costs = options.tables, {feature.home: 0.0 for feature in options.features}
    widths = widths_of(options.features, options.model.width)
    for feature in statistics:
        costs[feature.table] += feature.cost(widths[feature.table])
    made = DedupEmbeddings(
        options.features, options.model.width, group, rule=chosen.rule, rate=chosen.rate, eps=chosen.eps,
        dtype=torch.float64 if options.run.dtype == "float64" else getattr(torch, chosen.dtype),
        backend=chosen.backend, sharding=chosen.sharding, planner=chosen.planner, costs=costs if statistics else None,
        frequencies=counted, memory=chosen.memory, fast=chosen.fast, slow=chosen.slow or options.run.folder,
        slow_cost=chosen.slow_cost, mean=False, seed=options.run.seed, device=device,
    )  # fmt: skip
    notes = list(made.notes)
    for rank in range(group.size) if statistics else ():
        pieces = [one.table for places in made.places.values() for one in places if one.rank == rank]
        share = sum(costs[piece.of or piece.name] * piece.rows / (piece.whole[0] or piece.rows) for piece in pieces)
        notes.append(
            f"tables of rank {rank}: {', '.join(piece.name for piece in pieces) or 'none'}"
            f" ({share / (sum(costs.values()) or 1.0):.0%} of the cost that {SAMPLE} batches show)"
        )
    return made, notes


def dense_optimizer(model: nn.Module, options: OptimizerOptions) -> torch.optim.Optimizer:
    """Return the optimizer of all parameters except tables, with its state allocated, so that it can be loaded."""
    parameters = list(model.parameters())
    if options.rule == "sgd":
        return torch.optim.SGD(parameters, lr=options.rate)
    if options.rule == "adagrad":
        return torch.optim.Adagrad(parameters, lr=options.rate)
    adam = torch.optim.Adam(parameters, lr=options.rate)
    for parameter in parameters:
        adam.state[parameter] = {
            "step": torch.tensor(0.0),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return adam
