"""Handles torch wrappers around a model with sharded tables: excludes the tables from DDP, rejects other wrappers.

DistributedDataParallel and FSDP assume that parameters with the same name are copies on all ranks. Sharded tables hold
different rows on each rank under one name, and cedar already exchanges their gradients.
"""

from __future__ import annotations

import weakref
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from cedar.core.errors import CedarError
from cedar.trainers.dlrm.tables import sharding_error

if TYPE_CHECKING:
    from cedar.trainers.dlrm.embeddings import DedupEmbeddings

_alive: weakref.WeakSet[DedupEmbeddings] = weakref.WeakSet()


def watch(embeddings: DedupEmbeddings) -> None:
    """Start checking which wrappers and optimizers use these embeddings."""
    _watch_all()
    _alive.add(embeddings)


@cache
def _watch_all() -> None:
    register_module_module_registration_hook(_wrapped)
    register_optimizer_step_pre_hook(_stepping)
    register_optimizer_step_post_hook(_stepped)


def _stepping(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Raise for an optimizer that broadcasts parameters from one rank to all after its step."""
    sends = type(optimizer).__name__ == "ZeroRedundancyOptimizer"
    if sends and any(each.group.size > 1 for each in _tables_of(optimizer)):
        raise CedarError(
            "ZeroRedundancyOptimizer broadcasts parameters, but each rank has its own rows of DedupEmbeddings",
            done="nothing was updated", fix="give embeddings.parameters() to another optimizer",
        )  # fmt: skip


def _tables_of(optimizer: torch.optim.Optimizer) -> list[DedupEmbeddings]:
    has = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return [each for each in _alive if any(id(parameter) in has for parameter in each.parameters())]


def _stepped(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Record that an optimizer made a step. Without any tables, the optimizer may belong to any of the models."""
    waiting = [each for each in _alive if each.waiting]
    if waiting:
        own = _tables_of(optimizer)
        for each in waiting:
            each.left_behind |= not own or each in own


def _wrapped(parent: nn.Module, name: str, module: nn.Module | None) -> None:
    """Detect wrappers. Called when a module is registered in another; DDP does so before it broadcasts parameters."""
    if name not in ("module", "_fsdp_wrapped_module") or module is None:
        return
    if isinstance(parent, DistributedDataParallel):
        for embeddings in [each for each in _alive if _inside(each, module)]:
            _ignored(parent, module, embeddings)
    elif type(parent).__name__ == "FullyShardedDataParallel":
        kept: Any = parent._ignored_modules
        if any(each.tables.whole and each not in kept for each in _alive if _inside(each, module)):
            raise sharding_error("FullyShardedDataParallel")


def _inside(embeddings: DedupEmbeddings, module: nn.Module) -> bool:
    own = {id(parameter) for parameter in embeddings.parameters()}
    return any(each is embeddings for each in module.modules()) or any(id(p) in own for p in module.parameters())


def _ignored(parent: DistributedDataParallel, module: nn.Module, embeddings: DedupEmbeddings) -> None:
    ranks, size = embeddings.group.size, parent.process_group.size()
    if ranks == 1 and embeddings.rule is None:
        return  # each rank holds all tables, and DDP averages their gradients
    if ranks != size:
        raise CedarError(
            f"DistributedDataParallel has {size} ranks, but the DedupEmbeddings inside has {ranks}: their tables would "
            "diverge",
            done="nothing was trained",
            fix="create DedupEmbeddings after torch.distributed.init_process_group, with the same ranks",
        )
    own = {id(parameter) for parameter in embeddings.parameters()}
    others = [each for each in module.modules() if each is not embeddings.tables]
    tied = [each for each in others if any(id(p) in own for p in each.parameters(recurse=False))]
    if tied and ranks > 1:
        raise CedarError(
            f"{type(tied[0]).__name__} has a DedupEmbeddings table as its weight, which differs between ranks",
            done="nothing was trained", fix="do not tie weights to sharded tables",
        )  # fmt: skip
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if id(parameter) in own:
            parent.parameters_to_ignore.add(name)
            parameter._ddp_ignored = True  # type: ignore[attr-defined] # DDP's mixed precision reads this attribute
    if not any(p.requires_grad for n, p in module.named_parameters() if n not in parent.parameters_to_ignore):
        raise CedarError(
            "DistributedDataParallel has nothing to average: DedupEmbeddings exchanges its gradients itself",
            done="nothing was trained", fix="do not wrap the embeddings",
        )  # fmt: skip
