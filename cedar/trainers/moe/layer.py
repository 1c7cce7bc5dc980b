"""``SymiMoE``, a mixture of experts: routes tokens, sends them to replicas, computes, and combines the results."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self, get_args
from weakref import WeakKeyDictionary, WeakMethod, ref

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from cedar.core.errors import CedarError
from cedar.trainers.common.compute import keyed
from cedar.trainers.common.config import check_choice
from cedar.trainers.common.group import Group, differing_ranks, exchange_rows
from cedar.trainers.moe.dispatch import Dispatch, Drop, plan_dispatch, take_rows
from cedar.trainers.moe.experts import Experts, Routing, auxiliary_loss, z_loss
from cedar.trainers.moe.gradients import moved_rows
from cedar.trainers.moe.placement import RULES, Basis, Placement, Policy, place


class SymiMoE(nn.Module):
    """A mixture of experts whose replicas are distributed over the ranks of a group (SYMI, arXiv 2504.19925).

    The router and the shared experts (DeepSeekMoE, arXiv 2401.06066) are ordinary parameters, the same on all ranks.
    This rank's experts are rows of ``weights``, ``[held, size]``, in the order of ``placement.hosts[rank]``;
    ``state_dict`` lists them individually, as ``experts.3.up``. ``SymiOptimizer`` trains all of them and moves
    replicas.

    torch.compile runs the layer uncompiled, and activation checkpointing counts each token once. A copy (``deepcopy``,
    ``torch.optim.swa_utils.AveragedModel``) follows the original's placement, so make copies on all ranks. Do not use
    DistributedDataParallel or FSDP, which assume that all ranks have the same experts: ``SymiOptimizer`` sums gradients
    and shards optimizer state itself.

    Args:
        expert_factory: builds an expert from its number, a module from ``[tokens, width]`` to the same; see
            ``Experts``.
        router: maps ``[tokens, width]`` to a ``Routing``; its attribute ``experts`` is their number. See ``Router``.
        group: the ranks; None for all of torch.distributed, or this process as a single rank. Use one seed on all.
        slots: slots per rank; a slot holds one replica. None: the number of experts.
        capacity: limit of a slot relative to an even share of a call's copies; 0 for no limit.
        drop: which copies a full expert drops: by ``position``, the last; by ``probability``, the least probable.
        policy: when replicas follow popularity.
        rule: how popularity becomes replica counts, ``paper`` or ``minmax``.
        shared: experts that process every token; they are not placed.
        aux_loss: weight of the balancing loss; see ``auxiliary_loss``.
        z_loss: weight of the loss on large logits.
        bias_rate: change of the router's ``bias`` per step in loss-free balancing.
        rates: for each expert, a factor on the learning rate; empty for 1.
        decays: for each expert, a factor on the weight decay; empty for 1.
        name: name under which bytes and seconds are counted.

    Raises:
        CedarError: there are fewer slots than experts, or the policy is ``oracle`` on several ranks.
        ValueError: ``capacity`` is negative or not finite, or ``drop`` or ``rule`` is unknown.

    Examples:
        >>> from cedar.trainers.moe.experts import Router
        >>> layer = SymiMoE(lambda number: nn.Linear(8, 8), Router(8, experts=4, top_k=2))
        >>> layer(torch.randn(3, 5, 8)).shape
        torch.Size([3, 5, 8])
    """

    def __init__(  # noqa: PLR0913 - most are keyword-only
        self, expert_factory: Callable[[int], nn.Module], router: nn.Module, group: Group | None = None, *,
        slots: int | None = None, capacity: float = 1.0, drop: Drop = "position", policy: Policy | None = None,
        rule: str = "paper", shared: Iterable[nn.Module] = (), aux_loss: float = 0.0, z_loss: float = 0.0,
        bias_rate: float = 0.0, rates: Sequence[float] = (), decays: Sequence[float] = (), name: str = "experts",
    ) -> None:  # fmt: skip
        super().__init__()
        check_choice("drop", drop, get_args(Drop))
        check_choice("rule", rule, RULES)
        if not 0 <= capacity < math.inf:
            raise ValueError(f"capacity is {capacity}: give a finite number of 0 or more")
        self.group, self.policy, self.name = group or Group(), policy or Policy(), name
        if self.policy.kind == "oracle" and self.group.size > 1:
            raise CedarError(
                f"the policy 'oracle' places experts after routing, which is impossible on {self.group.size} ranks",
                fix="run on one rank, with slots set to the slots of all ranks",
            )
        chooser: Any = router
        self.router: Any = router
        self.shared, self.count = nn.ModuleList(shared), int(chooser.experts)
        self.slots, self.capacity, self.drop, self.rule = slots or self.count, capacity, drop, rule
        self.aux_loss, self.z_loss, self.bias_rate = aux_loss, z_loss, bias_rate
        self.factors = list(zip(rates or [1.0] * self.count, decays or [1.0] * self.count, strict=True))
        key = int(torch.randint(1 << 62, ()))

        def make(expert: int) -> nn.Module:
            with keyed("cpu", key, expert):  # all ranks create the same expert
                return expert_factory(expert)

        self.experts = Experts(make)
        self.basis: Basis = self.policy.start(self.count)
        self.placement = self.place()
        self.weights = nn.Parameter(torch.stack([self.experts.first(expert) for expert in self.local_experts]))
        self.awaited: Basis | None = None  # a loaded basis, which the next call applies
        self.still: frozenset[int] = frozenset()  # indices of this rank's experts that need no gradient
        self.clear()

    @property
    def local_experts(self) -> tuple[int, ...]:
        """The experts of this rank, in the order of the rows of ``weights``."""
        return self.placement.hosts[self.group.rank]

    def place(self) -> Placement:
        """Return the placement for the current basis."""
        return place(self.basis, self.group.size, self.slots, self.rule)

    def follow(self, step: int) -> None:
        """Update the router's bias and the placement from token counts. Then call ``hold`` with the new weights."""
        if self.bias_rate:
            self.router.balance(self.counts, self.bias_rate)
        self.place_by(self.policy.follow(self.basis, self.counts.tolist(), step))

    def place_by(self, basis: Basis) -> None:
        """Apply a basis to this layer and to its copies. Then call ``hold`` with the new weights of this rank."""
        self.basis, self.awaited = basis, None
        self.placement = self.place()
        for follower in followers(self):
            follower.move(basis)

    def move(self, basis: Basis) -> None:
        """Apply a basis and exchange weights between ranks accordingly. All ranks must call it."""
        before = self.placement.hosts
        self.place_by(basis)
        if self.placement.hosts != before:
            weights, phase = self.weights.detach(), f"weights {self.name}"
            with torch.inference_mode(False):
                self.hold(moved_rows(weights, before, self.placement.hosts, self.group, phase))

    def hold(self, weights: torch.Tensor) -> None:
        """Set the weights of ``local_experts``, ``[held, size]``."""
        old = self.weights
        if old.shape == weights.shape and old.dtype == weights.dtype:
            with torch.no_grad():
                old.copy_(weights)
        else:  # a new shape needs a new parameter, as graphs of earlier steps may use the old one
            self.weights = nn.Parameter(weights.clone(), requires_grad=old.requires_grad)
            if (reported := _listeners.get(self)) is not None and (tell := reported()) is not None:
                tell()
        self.weights.grad = None

    def train(self, mode: bool = True) -> Self:
        self.experts.module.train(mode)  # not a submodule, because its parameters belong to no expert
        return super().train(mode)

    def clear(self) -> None:
        """Reset the counts and losses that were collected since the last step."""
        self.counts = torch.zeros(self.count, dtype=torch.int64)
        self.kept = torch.zeros(self.count, dtype=torch.int64)
        self.losses: list[torch.Tensor] = []
        self.unused: list[torch.Tensor] = []

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map tokens ``[..., width]`` to outputs of the same shape. If all experts of a token drop it, its output is
        that of the shared experts, or zeros.

        In training, copies are counted in ``counts`` and ``kept``, and this rank's part of the router loss is appended
        to ``losses``. Both happen after the computation, so a failed call changes nothing.

        Raises:
            CedarError: ranks hold different placements, or the model is wrapped in DistributedDataParallel.
        """
        if DistributedDataParallel._get_active_ddp_module() is not None:  # type: ignore[no-untyped-call]
            refuse_wrapped("DistributedDataParallel")
        if self.awaited is not None:
            self.move(self.awaited)
        flat = tokens.reshape(-1, tokens.shape[-1])
        with self.group.meter.timing(f"routing {self.name}"):
            routing = self._route(flat)
        placement, counts = self.placement, self._count(routing)
        if self.policy.kind == "oracle":
            placement = place(counts.sum(0).tolist(), 1, self.slots, self.rule)
        with self.group.meter.timing(f"planning {self.name}"):
            way = plan_dispatch(
                routing.experts, routing.gates, counts, placement, self.group.rank, capacity=self.capacity or None,
                drop=self.drop,
            )  # fmt: skip
        out = self._answers(flat, routing, way)
        for expert in self.shared:
            out = out + expert(flat)
        self.placement = placement
        if self.training:
            out = self._account(out, routing, counts, way)
        return out.view(tokens.shape)

    def _route(self, flat: torch.Tensor) -> Routing:
        """Route with at least float32 precision, even under autocast: lower precision would select other experts."""
        dtypes = [p.dtype for p in self.router.parameters() if p.is_floating_point()]
        if torch.is_autocast_enabled(flat.device.type) and torch.float32 in dtypes:
            with torch.autocast(flat.device.type, enabled=False):
                return self.router(flat.float())  # type: ignore[no-any-return]
        return self.router(flat)  # type: ignore[no-any-return]

    def _count(self, routing: Routing) -> torch.Tensor:
        """Return the number of copies per rank and expert. The same exchange compares the placements of all ranks."""
        own = torch.bincount(routing.experts.flatten(), minlength=self.count)
        same = torch.tensor([self.placement.digest], device=own.device)
        table = self.group.gather(torch.cat([own, same]), f"counts {self.name}").cpu()
        if odd := differing_ranks(table[:, -1].tolist()):
            raise CedarError(
                f"ranks {odd} have another placement of experts than rank 0",
                done="nothing was sent",
                fix="start all ranks from the same checkpoint, with the same configuration",
            )
        return table[:, :-1]

    def _account(
        self, out: torch.Tensor, routing: Routing, counts: torch.Tensor, way: Dispatch
    ) -> torch.Tensor:  # fmt: skip
        """Count copies and record the router's loss, unless activation checkpointing recomputes a call."""
        loss = out.new_zeros((), dtype=routing.logits.dtype)
        if self.aux_loss:
            loss = loss + self.aux_loss * auxiliary_loss(routing, counts)
        if self.z_loss:
            loss = loss + self.z_loss * z_loss(routing, counts)
        if torch._C._current_graph_task_id() != -1:  # inside a backward pass: a recomputation
            return self._recomputed(out, loss)
        self.counts = self.counts + counts.sum(0)
        self.kept = self.kept + way.kept.sum(0)
        if (self.aux_loss or self.z_loss) and torch.is_grad_enabled():
            self.losses.append(loss)
        elif self.aux_loss or self.z_loss:  # reentrant checkpoint: its backward pass applies the loss's gradient
            self.losses.append(loss.detach().requires_grad_())
            self.unused.append(self.losses[-1])
        return out

    def _recomputed(self, out: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
        """Attach the gradient of the original call's loss. The backward pass recomputes the last call first."""
        ready = [at for at, first in enumerate(self.unused) if first.grad is not None]
        if not ready or not torch.is_grad_enabled():
            return out
        attached: torch.Tensor = _Attach.apply(out, loss, self.unused.pop(ready[-1]).grad)  # type: ignore[no-untyped-call]
        return attached

    def _answers(self, flat: torch.Tensor, routing: Routing, way: Dispatch) -> torch.Tensor:
        k, width = routing.experts.shape[1], flat.shape[1]
        phases = (f"tokens {self.name}",) * 2
        out = take_rows(flat, way.copies // k, way.places)
        got = exchange_rows(out, self.group, way.send, way.receive, phases)
        ordered = take_rows(got, way.order, way.undo[:, None])
        with self.group.meter.timing(f"experts {self.name}"):
            answers = self.experts.outputs(ordered, way.rows, self.weights, self.still)
        answers = take_rows(answers, way.undo, way.order[:, None])
        anchor = self.weights if self.weights.requires_grad else None  # the same choice on all ranks
        home = exchange_rows(answers, self.group, way.receive, way.send, phases, anchor=anchor)
        own = take_rows(home, way.places.flatten(), way.copies[:, None]).view(len(flat), k, width)
        gates = routing.gates.to(flat.dtype)
        total = own[:, 0] * gates[:, :1]
        for at in range(1, k):
            total = total + own[:, at] * gates[:, at : at + 1]
        return total

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        memo[id(self.group)] = self.group  # process groups cannot be copied
        other = type(self).__new__(type(self))
        memo[id(self)] = other
        left = {"losses", "unused"}  # belong to autograd graphs, which cannot be copied
        other.__dict__ = copy.deepcopy({name: value for name, value in self.__dict__.items() if name not in left}, memo)
        other.clear()
        _originals[other] = _originals.get(self, ref(self))
        return other

    # ---- state -------------------------------------------------------------------------------------------------------

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        rows = destination.pop(f"{prefix}weights")
        for expert, row in zip(self.local_experts, rows, strict=True):
            destination |= {
                f"{prefix}experts.{expert}.{name}": value for name, value in self.experts.named(row).items()
            }

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, metadata: Any, strict: bool, missing: list[str], *more: Any
    ) -> None:
        """Load this rank's experts. The state may contain other experts, which are ignored."""
        given: dict[str, torch.Tensor] = {
            key: state_dict.pop(key) for key in list(state_dict) if key.startswith(f"{prefix}experts.")
        }
        names = [[f"{prefix}experts.{expert}.{name}" for name in self.experts.shapes] for expert in self.local_experts]
        absent = [name for row in names for name in row if name not in given]
        if not absent:
            rows = [torch.cat([given[name].flatten() for name in row]) for row in names]
            state_dict[f"{prefix}weights"] = torch.stack(rows)
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, *more)
        if absent:
            missing.remove(f"{prefix}weights")
            missing += absent

    def whole(self) -> dict[str, torch.Tensor]:
        """Return all experts of all ranks under their ``state_dict`` names. All ranks must call it."""
        every = (range(self.count),) * self.group.size
        weights, phase = self.weights.detach(), f"weights {self.name}"
        rows = moved_rows(weights, self.placement.hosts, every, self.group, phase)
        return {
            f"experts.{expert}.{name}": value
            for expert, row in enumerate(rows) for name, value in self.experts.named(row).items()
        }  # fmt: skip


class _Attach(torch.autograd.Function):
    """Identity function whose backward pass also passes a gradient to a loss."""

    @staticmethod
    def forward(ctx: Any, out: torch.Tensor, _loss: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gradient)
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        return grads[0], ctx.saved_tensors[0], None


_listeners: WeakKeyDictionary[SymiMoE, WeakMethod[Callable[[], None]]] = WeakKeyDictionary()  # called for new weights
_originals: WeakKeyDictionary[SymiMoE, ref[SymiMoE]] = WeakKeyDictionary()  # copy -> original, oldest first


def followers(layer: SymiMoE) -> list[SymiMoE]:
    """Return a layer's copies, oldest first: the same list on all ranks that made the same copies."""
    return [copied for copied, leader in _originals.items() if leader() is layer]


def lead(layer: SymiMoE, tell: Callable[[], None]) -> None:
    """Mark a layer as trained, so that it follows no original. ``tell``: called if its parameter is replaced."""
    _originals.pop(layer, None)
    _listeners[layer] = WeakMethod(tell)


def refuse_wrapped(wrapper: str) -> None:
    """Raise an error that names the wrapper of the model."""
    raise CedarError(
        f"the model is wrapped in {wrapper}, which assumes the same experts on all ranks",
        fix="do not wrap it: SymiOptimizer sums gradients over ranks and shards optimizer state",
    )


def router_losses(model: nn.Module, *, mean: bool = True) -> torch.Tensor:
    """Return the sum of all router losses since the last call, to be added to the model's loss.

    Args:
        model: a model with ``SymiMoE`` layers.
        mean: whether gradients will be averaged over ranks, as ``SymiOptimizer`` does by default; else they are summed.
    """
    layers = mixtures(model)
    total = sum((loss for layer in layers for loss in layer.losses), next(model.parameters()).new_zeros(()))
    for layer in layers:
        layer.losses = []
    return total * layers[0].group.size if mean and layers else total


def mixtures(model: nn.Module) -> list[SymiMoE]:
    """Return the ``SymiMoE`` layers of a model in order."""
    return [layer for layer in model.modules() if isinstance(layer, SymiMoE)]


def whole_state_dict(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the model's ``state_dict`` with the experts of all ranks. All ranks must call it."""
    state: dict[str, torch.Tensor] = dict(model.state_dict())
    for prefix, layer in model.named_modules(remove_duplicate=False):
        if isinstance(layer, SymiMoE):
            state |= {f"{prefix}.{name}" if prefix else name: value for name, value in layer.whole().items()}
    return state
