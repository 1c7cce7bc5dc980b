"""Tables and optimizers from options."""

from __future__ import annotations

import torch

from cedar.trainers.common.group import Group
from cedar.trainers.dlrm import fbgemm
from cedar.trainers.dlrm.exchange import ShardedTables
from cedar.trainers.dlrm.fbgemm_tables import RULES, FbgemmTables
from cedar.trainers.dlrm.model import Model
from cedar.trainers.dlrm.options import OptimizerOptions, Options
from cedar.trainers.dlrm.tables import Table, Tables, TorchTables


def make_tables(
    options: Options, owners: dict[str, int], group: Group, device: torch.device, notes: list[str]
) -> Tables:
    """The tables of this rank, and access to those of the others.

    Args:
        options: of the run.
        owners: the rank of each table.
        group: the ranks.
        device: where tables are.
        notes: what was chosen, and why, is added here.

    Raises:
        CedarError: fbgemm is asked for, and cannot be used.
    """
    rows = {feature.home: feature.rows for feature in options.features}
    mine = [Table(name, count) for name, count in rows.items() if owners[name] == group.rank]
    chosen, seed, width = options.tables, options.run.seed, options.model.width
    compute = torch.float64 if options.run.dtype == "float64" else torch.float32
    local: Tables
    if _by_fbgemm(options, notes) and mine:
        local = FbgemmTables(mine, width, rule=chosen.rule, eps=chosen.eps, seed=seed, device=device)
    else:
        dtype = compute if compute == torch.float64 else getattr(torch, chosen.dtype)
        local = TorchTables(mine, width, rule=chosen.rule, eps=chosen.eps, dtype=dtype, seed=seed, device=device)
    if group.size == 1:
        return local
    return ShardedTables(local, owners, options.features, group, width, compute, device)


def _by_fbgemm(options: Options, notes: list[str]) -> bool:
    """Whether fbgemm keeps the tables; asked for, it must load, and what it cannot do is torch's."""
    chosen = options.tables
    if chosen.backend == "torch":
        notes.append("tables: torch, as asked")
        return False
    if chosen.backend == "fbgemm":
        fbgemm.module()
    why = fbgemm.found()[1]
    if why is None and chosen.rule not in RULES:
        why = f"fbgemm has no {chosen.rule} on the CPU"
    if why is None and (chosen.dtype != "float32" or options.run.dtype == "float64"):
        dtype = "float64" if options.run.dtype == "float64" else f"{chosen.dtype} with rounding that can be repeated"
        why = f"fbgemm has no tables of {dtype}"
    if why is None and options.model.width % 4:
        why = f"fbgemm needs a width that is a multiple of 4, not {options.model.width}"
    notes.append("tables: fbgemm" if why is None else f"tables: torch ({why})")
    return why is None


def dense_optimizer(model: Model, options: OptimizerOptions) -> torch.optim.Optimizer:
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
