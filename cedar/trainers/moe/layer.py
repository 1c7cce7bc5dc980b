"""``SymiMoE``: route, send to replicas, compute, send back, weigh and add."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self
from weakref import WeakKeyDictionary, WeakMethod, ref

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from cedar.core.errors import CedarError
from cedar.trainers.common.compute import keyed
from cedar.trainers.common.group import Group, exchange_rows, odd_ranks
from cedar.trainers.moe.dispatch import Dispatch, Drop, plan_dispatch, take_rows
from cedar.trainers.moe.experts import Experts, Routing, auxiliary_loss, z_loss
from cedar.trainers.moe.gradients import moved_rows
from cedar.trainers.moe.placement import Basis, Placement, Policy, place


class SymiMoE(nn.Module):
    """A mixture of experts whose replicas are spread over the ranks of a group (SYMI, arXiv 2504.19925).

    The router and the shared experts (DeepSeekMoE, arXiv 2401.06066) are plain parameters, the same on all ranks. The
    experts that this rank holds are rows of ``weights``, ``[held, size]``, in the order of ``placement.hosts[rank]``;
    ``state_dict`` names them one by one, ``experts.3.up``. ``SymiOptimizer`` trains all of it and moves replicas.

    torch.compile computes it as it stands, and activation checkpointing counts each token once. A copy (``deepcopy``,
    ``torch.optim.swa_utils.AveragedModel``) holds the experts that the original holds, wherever they move: make copies
    on all ranks. DistributedDataParallel and FSDP do not know that experts differ from rank to rank: leave them out,
    ``SymiOptimizer`` adds up gradients and spreads optimizer state itself.

    Args:
        expert_factory: an expert by its number: a module from ``[tokens, width]`` to the same; see ``Experts``.
        router: from ``[tokens, width]`` to a ``Routing``; its ``experts`` is how many there are. See ``Router``.
        group: the ranks; None for all of torch.distributed, or this process alone. Seed them alike.
        slots: on each rank; a slot holds one replica. None: as many as experts.
        capacity: of a slot, in even shares of the copies of a call; 0 for no limit.
        drop: which copies a full expert drops: those of the last ``position``, or of the least ``probability``.
        policy: when replicas follow popularity.
        rule: that turns popularity into replicas, ``paper`` or ``minmax``.
        shared: experts that every token goes to; they are not placed.
        aux_loss: weight of the balancing loss; see ``auxiliary_loss``.
        z_loss: weight of the loss on large logits.
        bias_rate: by which loss-free balancing moves the router's ``bias`` at each step.
        rates: a factor on the learning rate of each expert; empty for 1.
        decays: a factor on the weight decay of each expert; empty for 1.
        name: what bytes and seconds are counted under.

    Raises:
        CedarError: there are fewer slots than experts; the policy ``oracle`` on several ranks.

    Examples:
        >>> from cedar.trainers.moe.experts import Router
        >>> layer = SymiMoE(lambda number: nn.Linear(8, 8), Router(8, experts=4, top_k=2))
        >>> layer(torch.randn(3, 5, 8)).shape
        torch.Size([3, 5, 8])
    """

    def __init__(  # noqa: PLR0913 - each has a name
        self, expert_factory: Callable[[int], nn.Module], router: nn.Module, group: Group | None = None, *,
        slots: int | None = None, capacity: float = 1.0, drop: Drop = "position", policy: Policy | None = None,
        rule: str = "paper", shared: Iterable[nn.Module] = (), aux_loss: float = 0.0, z_loss: float = 0.0,
        bias_rate: float = 0.0, rates: Sequence[float] = (), decays: Sequence[float] = (), name: str = "experts",
    ) -> None:  # fmt: skip
        super().__init__()
        self.group, self.policy, self.name = group or Group(), policy or Policy(), name
        if self.policy.kind == "oracle" and self.group.size > 1:
            raise CedarError(
                f"the policy 'oracle' places experts after tokens are routed, which {self.group.size} ranks cannot",
                fix="run it on one rank: slots = all slots",
            )
        chooser: Any = router
        self.router: Any = router
        self.shared, self.count = nn.ModuleList(shared), int(chooser.experts)
        self.slots, self.capacity, self.drop, self.rule = slots or self.count, capacity, drop, rule
        self.aux_loss, self.z_loss, self.bias_rate = aux_loss, z_loss, bias_rate
        self.factors = list(zip(rates or [1.0] * self.count, decays or [1.0] * self.count, strict=True))
        key = int(torch.randint(1 << 62, ()))

        def make(expert: int) -> nn.Module:
            with keyed("cpu", key, expert):  # the same expert on all ranks
                return expert_factory(expert)

        self.experts = Experts(make)
        self.basis: Basis = self.policy.start(self.count)
        self.placement = self.place()
        self.weights = nn.Parameter(torch.stack([self.experts.first(expert) for expert in self.local_experts]))
        self.awaited: Basis | None = None  # what to place by before the next call
        self.still: frozenset[int] = frozenset()  # of this rank's experts, those whose weights need no gradient
        self.clear()

    @property
    def local_experts(self) -> tuple[int, ...]:
        """The experts of this rank, as rows of ``weights``."""
        return self.placement.hosts[self.group.rank]

    def place(self) -> Placement:
        """The placement that the policy asks for now."""
        return place(self.basis, self.group.size, self.slots, self.rule)

    def follow(self, step: int) -> None:
        """Move bias and placement after what was counted; who calls it gives this rank's weights to ``hold``."""
        if self.bias_rate:
            self.router.balance(self.counts, self.bias_rate)
        self.place_by(self.policy.follow(self.basis, self.counts.tolist(), step))

    def place_by(self, basis: Basis) -> None:
        """Place by this popularity, copies too; who calls it gives this rank's weights to ``hold``."""
        self.basis, self.awaited = basis, None
        self.placement = self.place()
        for follower in followers(self):
            follower.move(basis)

    def move(self, basis: Basis) -> None:
        """Place by this popularity, and take weights along from rank to rank; all ranks call it."""
        before = self.placement.hosts
        self.place_by(basis)
        if self.placement.hosts != before:
            weights, phase = self.weights.detach(), f"weights {self.name}"
            with torch.inference_mode(False):
                self.hold(moved_rows(weights, before, self.placement.hosts, self.group, phase))

    def hold(self, weights: torch.Tensor) -> None:
        """Compute with these weights from now on, ``[held, size]``: those of ``local_experts``."""
        old = self.weights
        if old.shape == weights.shape and old.dtype == weights.dtype:
            with torch.no_grad():
                old.copy_(weights)
        else:  # another number of rows: another leaf, as graphs of earlier steps may hold the old one
            self.weights = nn.Parameter(weights.clone(), requires_grad=old.requires_grad)
            if (reported := _owners.get(self)) is not None and (tell := reported()) is not None:
                tell()
        self.weights.grad = None

    def train(self, mode: bool = True) -> Self:
        self.experts.module.train(mode)  # no submodule, as its parameters are those of no expert
        return super().train(mode)

    def clear(self) -> None:
        """Forget what was counted and added up since the last step."""
        self.counts = torch.zeros(self.count, dtype=torch.int64)
        self.kept = torch.zeros(self.count, dtype=torch.int64)
        self.losses: list[torch.Tensor] = []
        self.unused: list[torch.Tensor] = []

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens ``[..., width]`` to answers of that shape; a token that all its experts dropped gets zeros (and what
        the shared experts say).

        While training, copies are counted in ``counts`` and ``kept``, and the loss of the router, this rank's part of
        it, is appended to ``losses``: when all is computed, so a call that fails leaves no trace.

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
        """Scores in float32 at least, under autocast too: in fewer digits tokens would go to other experts."""
        dtypes = [p.dtype for p in self.router.parameters() if p.is_floating_point()]
        if torch.is_autocast_enabled(flat.device.type) and torch.float32 in dtypes:
            with torch.autocast(flat.device.type, enabled=False):
                return self.router(flat.float())  # type: ignore[no-any-return]
        return self.router(flat)  # type: ignore[no-any-return]

    def _count(self, routing: Routing) -> torch.Tensor:
        """Copies for each expert on each rank; on the way ranks compare their placements."""
        own = torch.bincount(routing.experts.flatten(), minlength=self.count)
        same = torch.tensor([self.placement.digest], device=own.device)
        table = self.group.gather(torch.cat([own, same]), f"counts {self.name}").cpu()
        if odd := odd_ranks(table[:, -1].tolist()):
            raise CedarError(
                f"ranks disagree on where experts are: {odd} have another placement than rank 0",
                done="nothing was sent",
                fix="start all ranks from one checkpoint, with one configuration",
            )
        return table[:, :-1]

    def _account(
        self, out: torch.Tensor, routing: Routing, counts: torch.Tensor, way: Dispatch
    ) -> torch.Tensor:  # fmt: skip
        """Count the copies and keep the loss of the router, once for each call: checkpointing calls it again."""
        loss = out.new_zeros((), dtype=routing.logits.dtype)
        if self.aux_loss:
            loss = loss + self.aux_loss * auxiliary_loss(routing, counts)
        if self.z_loss:
            loss = loss + self.z_loss * z_loss(routing, counts)
        if torch._C._current_graph_task_id() != -1:  # inside a backward pass: what is computed was computed before
            return self._recomputed(out, loss)
        self.counts = self.counts + counts.sum(0)
        self.kept = self.kept + way.kept.sum(0)
        if (self.aux_loss or self.z_loss) and torch.is_grad_enabled():
            self.losses.append(loss)
        elif self.aux_loss or self.z_loss:  # a reentrant checkpoint: the gradient of the loss waits for its way back
            self.losses.append(loss.detach().requires_grad_())
            self.unused.append(self.losses[-1])
        return out

    def _recomputed(self, out: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
        """Give the loss the gradient that the one of the first call got. Ways back begin with the last call."""
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
        anchor = self.weights if self.weights.requires_grad else None  # the same on all ranks, other than answers
        home = exchange_rows(answers, self.group, way.receive, way.send, phases, anchor=anchor)
        own = take_rows(home, way.places.flatten(), way.copies[:, None]).view(len(flat), k, width)
        gates = routing.gates.to(flat.dtype)
        total = own[:, 0] * gates[:, :1]
        for at in range(1, k):
            total = total + own[:, at] * gates[:, at : at + 1]
        return total

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        memo[id(self.group)] = self.group  # the ranks are who they are
        other = type(self).__new__(type(self))
        memo[id(self)] = other
        left = {"losses", "unused"}  # of graphs, which cannot be copied
        other.__dict__ = copy.deepcopy({name: value for name, value in self.__dict__.items() if name not in left}, memo)
        other.clear()
        _leaders[other] = _leaders.get(self, ref(self))
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
        """The experts that this rank holds are taken, of others there may be or not."""
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
        """All experts of all ranks as ``state_dict`` names them; all ranks call it."""
        every = (range(self.count),) * self.group.size
        weights, phase = self.weights.detach(), f"weights {self.name}"
        rows = moved_rows(weights, self.placement.hosts, every, self.group, phase)
        return {
            f"experts.{expert}.{name}": value
            for expert, row in enumerate(rows) for name, value in self.experts.named(row).items()
        }  # fmt: skip


class _Attach(torch.autograd.Function):
    """What it is given, whose way back gives a loss its gradient, too."""

    @staticmethod
    def forward(ctx: Any, out: torch.Tensor, _loss: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gradient)
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        return grads[0], ctx.saved_tensors[0], None


_owners: WeakKeyDictionary[SymiMoE, WeakMethod[Callable[[], None]]] = WeakKeyDictionary()  # who asks for new leaves
_leaders: WeakKeyDictionary[SymiMoE, ref[SymiMoE]] = WeakKeyDictionary()  # what a copy was copied from, oldest first


def followers(layer: SymiMoE) -> list[SymiMoE]:
    """The copies that move with a layer, oldest first: the same on all ranks that made the same copies."""
    return [copied for copied, leader in _leaders.items() if leader() is layer]


def lead(layer: SymiMoE, tell: Callable[[], None]) -> None:
    """Let a layer move by itself from now on, as it is trained; ``tell``: a method, called when its leaf is another."""
    _leaders.pop(layer, None)
    _owners[layer] = WeakMethod(tell)


def refuse_wrapped(wrapper: str) -> None:
    """Raise an error that names what the model is wrapped in."""
    raise CedarError(
        f"the model is wrapped in {wrapper}, to which the experts of all ranks are alike",
        fix="use the model itself: SymiOptimizer adds up gradients over ranks and spreads optimizer state",
    )


def router_losses(model: nn.Module, *, mean: bool = True) -> torch.Tensor:
    """The losses of all routers of a model since they were asked for last, to be added to its loss.

    Args:
        model: with ``SymiMoE`` layers.
        mean: ranks' gradients will be averaged, as ``SymiOptimizer`` does it; else they will be added up.
    """
    layers = mixtures(model)
    total = sum((loss for layer in layers for loss in layer.losses), next(model.parameters()).new_zeros(()))
    for layer in layers:
        layer.losses = []
    return total * layers[0].group.size if mean and layers else total


def mixtures(model: nn.Module) -> list[SymiMoE]:
    """The mixtures of a model, first to last."""
    return [layer for layer in model.modules() if isinstance(layer, SymiMoE)]


def whole_state_dict(model: nn.Module) -> dict[str, torch.Tensor]:
    """The model's ``state_dict`` with all experts of all ranks; all ranks call it."""
    state: dict[str, torch.Tensor] = dict(model.state_dict())
    for prefix, layer in model.named_modules(remove_duplicate=False):
        if isinstance(layer, SymiMoE):
            state |= {f"{prefix}.{name}" if prefix else name: value for name, value in layer.whole().items()}
    return state
