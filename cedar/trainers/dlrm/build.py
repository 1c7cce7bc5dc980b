"""Tables and optimizers from options."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from cedar.trainers.common.group import Group
from cedar.trainers.dlrm.embeddings import DedupEmbeddings
from cedar.trainers.dlrm.options import OptimizerOptions, Options
from cedar.trainers.dlrm.planner import FeatureStatistics

SAMPLE = 4  # batches that statistics are taken of


def tables_of(
    options: Options, group: Group, statistics: Sequence[FeatureStatistics], device: torch.device
) -> tuple[DedupEmbeddings, list[str]]:
    """The tables; what was chosen, and why. All ranks have the same statistics, and come to the same plan."""
    chosen, costs = options.tables, {feature.home: 0.0 for feature in options.features}
    for found in statistics:
        costs[found.table] += found.cost(options.model.width)
    made = DedupEmbeddings(
        options.features, options.model.width, group, rule=chosen.rule, rate=chosen.rate, eps=chosen.eps,
        dtype=torch.float64 if options.run.dtype == "float64" else getattr(torch, chosen.dtype),
        backend=chosen.backend, sharding=chosen.sharding, costs=costs if statistics else None, memory=chosen.memory,
        mean=False, seed=options.run.seed, device=device,
    )  # fmt: skip
    notes = list(made.notes)
    for rank in range(group.size) if statistics else ():
        held = [one.table for places in made.places.values() for one in places if one.rank == rank]
        share = sum(costs[piece.of or piece.name] * piece.rows / (piece.whole[0] or piece.rows) for piece in held)
        notes.append(
            f"tables of rank {rank}: {', '.join(piece.name for piece in held) or 'none'}"
            f" ({share / (sum(costs.values()) or 1.0):.0%} of the cost that {SAMPLE} batches show)"
        )
    return made, notes


def dense_optimizer(model: nn.Module, options: OptimizerOptions) -> torch.optim.Optimizer:
    """The optimizer of all that is no table; its state is there from the start, so that it can be loaded."""
    parameters = list(model.parameters())
    if options.rule == "sgd":
        return torch.optim.SGD(parameters, lr=options.rate)
    if options.rule == "adagrad":
        return torch.optim.Adagrad(parameters, lr=options.rate)
    found = torch.optim.Adam(parameters, lr=options.rate)
    for parameter in parameters:
        found.state[parameter] = {
            "step": torch.tensor(0.0),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return found
