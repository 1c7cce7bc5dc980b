"""``SymiOptimizer``: sends gradients to static shards, updates them there, and sends new weights to the experts."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer

from cedar.core.errors import CedarError
from cedar.trainers.common.group import differing_ranks
from cedar.trainers.common.tensors import Part as Saved
from cedar.trainers.moe.layer import SymiMoE, followers, lead, mixtures, refuse_wrapped
from cedar.trainers.moe.options import OptimizerOptions
from cedar.trainers.moe.shards import DensePart, ExpertPart, Part, widest
from cedar.trainers.moe.state import begin_adam, kinds_of_state, pack, share_of, unpack


@dataclass(frozen=True)
class Outcome:
    """The result of a step."""

    norm: float  # norm of all gradients together; NaN if the step was skipped
    scale: float  # factor that clipping applied to gradients; 1.0 without clipping
    skipped: bool  # a gradient was not finite, so no rank changed any weight
    ranks: tuple[int, ...] = ()  # ranks whose own gradients were not finite


@dataclass(frozen=True)
class ReplayRecord:
    """The data with which ranks replay a step bit for bit, without computing all of its gradients."""

    step: int  # counted from 0
    counts: tuple[tuple[int, ...], ...]
    outcome: Outcome  # norm, clip factor, and whether the step was skipped
    rate: float
    bias: tuple[tuple[float, ...], ...]  # each router's bias before the step


class SymiOptimizer(Optimizer):
    """A torch optimizer for models with ``SymiMoE`` layers; its state is sharded over the ranks and never moves.

    It works with torch's schedulers, ``GradScaler`` and hooks. ``step`` sums gradients over ranks, clips them by their
    global norm (arXiv 1211.5063), updates weights and placements, sends every rank the weights of its experts, and
    clears the gradients. If all ranks load or change parameters alike between steps, the next step starts from these
    values.

    On several ranks ``GradScaler`` must behave identically on all: use torch's ``ShardedGradScaler``, and call its
    ``unscale_`` before its ``step``.

    Args:
        model: a model with at least one ``SymiMoE`` layer, on the device where it computes.
        options: gradient dtype, clipping and skipping; without ``optimizer_class`` also rate, betas, eps and decay of
            AdamW, which decays experts and parameters with several dimensions.
        params: parameter groups with their own settings, as for any torch optimizer; they must include the ``weights``
            of all ``SymiMoE``. None: all parameters that require a gradient.
        optimizer_class: a torch optimizer that updates each value independently, such as SGD, Adam and RMSprop;
            ``defaults`` are its arguments.
        mean: True divides gradients by the number of ranks, as DistributedDataParallel does, for losses that are means
            over a rank's rows. False sums them.
        dtype: dtype of the weights that the model computes with; None: unchanged. Master weights are at least float32.
        defaults: arguments of the optimizer, such as ``lr``.

    Raises:
        CedarError: there is no ``SymiMoE`` layer, or two have the same name; the model is wrapped in DDP or FSDP;
            parameters are complex; ``optimizer_class`` works on whole tensors; ``params`` omits experts.

    Examples:
        >>> from cedar.nn import Router, SymiMoE
        >>> model = nn.Sequential(nn.Linear(4, 8), SymiMoE(lambda number: nn.Linear(8, 8), Router(8, experts=4)))
        >>> optimizer = SymiOptimizer(model, optimizer_class=torch.optim.SGD, lr=0.1, momentum=0.9)
        >>> model(torch.randn(5, 4)).square().mean().backward()
        >>> optimizer.step().skipped
        False
    """

    _step_supports_amp_scaling = True  # ``step``, not GradScaler, decides on a skip, and all ranks skip together

    def __init__(
        self, model: nn.Module, options: OptimizerOptions | None = None, *,
        params: Sequence[dict[str, Any]] | None = None, optimizer_class: Callable[..., Optimizer] | None = None,
        mean: bool = True, dtype: torch.dtype | None = None, **defaults: Any,
    ) -> None:  # fmt: skip
        self.layers, self.options, self.mean = mixtures(model), options or OptimizerOptions(), mean
        if not self.layers:
            raise CedarError("the model has no SymiMoE", fix="use an optimizer from torch.optim")
        _check_plain(model)
        for at, layer in enumerate(self.layers):
            layer.name = f"{layer.name}{at}" if layer.name == "experts" else layer.name
            lead(layer, self._follow_leaves)
        if len({layer.name for layer in self.layers}) < len(self.layers):
            raise CedarError("two SymiMoE layers have the same name", fix="give each layer its own name=")
        self.group, self._model, self._dtype = self.layers[0].group, model, dtype
        self.steps = self.skips = 0
        self.parts: list[Part] = []
        self._factors: list[tuple[int, float, float]] = []  # per inner group: outer group, factors of rate and decay
        self._leaves: list[tuple[int, int, SymiMoE]] = []  # (group, index, layer): the layers' parameters in the groups
        self._all_parameters = params is None
        own, kind = self.options, optimizer_class or torch.optim.AdamW
        if optimizer_class is None:
            defaults = {"lr": own.rate, "betas": own.betas, "eps": own.eps, "weight_decay": own.decay} | defaults
        self._kinds = kinds_of_state(lambda values: kind(values, **defaults), kind)
        self.inner = kind([nn.Parameter(torch.zeros(0))], **defaults)
        self.inner.param_groups.clear()
        if params is None:
            params = _groups(model, self.layers, decays=optimizer_class is None)
        super().__init__(params, self.inner.defaults)
        self._own(range(len(self.param_groups)))
        held = [layer for _, _, layer in self._leaves]
        if left := [layer.name for layer in self.layers if layer not in held]:
            raise CedarError(
                f"params leaves out the experts of {', '.join(left)}, which SymiOptimizer must train",
                fix="add their weights to a group; to freeze them, call requires_grad_(False)",
            )

    # ---- ownership of parameters -------------------------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Train additional parameters of the model, for example unfrozen ones. All ranks must call it."""
        super().add_param_group(param_group)
        if self.parts:  # false while the base class adds the initial groups
            self._own([len(self.param_groups) - 1])

    def _own(self, groups: Sequence[int]) -> None:
        """Create parts for the parameters of some groups, and register their slices with the inner optimizer."""
        layers = {layer.weights: layer for layer in self.layers}
        names = {p: name for name, p in self._model.named_parameters()}
        given = [p for at in groups for p in self.param_groups[at]["params"]]
        if any(p.is_complex() for p in given):
            raise CedarError("SymiOptimizer does not support complex parameters", fix="store their parts as reals")
        slices: dict[nn.Parameter, Sequence[nn.Parameter]] = {}
        made: list[Part] = []
        if dense := [(names.get(p, f"parameter {at}"), p) for at, p in enumerate(given) if p not in layers]:
            number = sum(isinstance(part, DensePart) for part in self.parts)
            every = DensePart(dense, self.group, self.options, f"dense{number or ''}", self._dtype)
            slices |= {p: [each] for p, each in zip(every.parameters, every.shards.slices, strict=True)}
            made.append(every)
        for p in given:
            if p in layers:
                experts = ExpertPart(layers[p], self.options, self._dtype)
                slices[p] = experts.shards.slices
                made.append(experts)
        self.parts += made
        for group in groups:
            self._add_slices(group, slices, layers)
        self._follow_leaves()

    def _add_slices(self, group: int, slices: Mapping[nn.Parameter, Sequence[nn.Parameter]], layers: Any) -> None:
        """Add the slices of a group to the inner optimizer, with one inner group per pair of rate and decay factors."""
        by_factors: dict[tuple[float, float], list[nn.Parameter]] = {}
        for at, p in enumerate(self.param_groups[group]["params"]):
            if p in layers:
                self._leaves.append((group, at, layers[p]))
            for factors, part in zip(layers[p].factors if p in layers else [(1.0, 1.0)], slices[p], strict=True):
                by_factors.setdefault(factors, []).append(part)
        for factors, values in by_factors.items():
            self._factors.append((group, *factors))
            self.inner.add_param_group({"params": values})
            begin_adam(self.inner, values, self._kinds)

    def _follow_leaves(self) -> None:
        """Update the groups with the layers' current parameters."""
        for group, at, layer in self._leaves:
            self.param_groups[group]["params"][at] = layer.weights
        self.state = {p: {} for group in self.param_groups for p in group["params"]}  # type: ignore[assignment]

    def _refresh(self) -> None:
        """Detect parameters that were moved, converted or replaced since the last step."""
        _check_plain(self._model)
        named = dict(self._model.named_parameters())
        for part in self.parts:
            if isinstance(part, DensePart):  # load_state_dict(assign=True) replaces parameters
                now = [named.get(name, p) for name, p in zip(part.names, part.parameters, strict=True)]
                others = dict(zip(part.parameters, now, strict=True))
                for group in self.param_groups:
                    group["params"][:] = [others.get(p, p) for p in group["params"]]
                part.parameters = now
        self._follow_leaves()
        for part in self.parts:
            dtype, device = widest(part.parameters), part.parameters[0].device
            if (dtype, device) != (part.shards.dtype, part.shards.device):
                part.shards.move(dtype, device)
                for s in part.shards.slices:
                    state = self.inner.state[s]
                    state |= {k: v.to(s) for k, v in state.items() if torch.is_tensor(v) and v.shape == s.shape}
        if self._all_parameters:
            owned = {p for group in self.param_groups for p in group["params"]}
            late = [name for name, p in named.items() if p.grad is not None and p not in owned]
            if late:
                raise CedarError(
                    f"{', '.join(late[:5])} got a gradient, but SymiOptimizer does not train it: it was frozen or not"
                    " part of the model when the optimizer was created",
                    fix='call optimizer.add_param_group({"params": [...]}) when you unfreeze parameters',
                )

    # ---- a step ------------------------------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Run one step with the accumulated gradients. All ranks must call it.

        Args:
            closure: computes the loss and its gradients; called first.

        Returns:
            An ``Outcome``; with a closure, its loss.

        Raises:
            CedarError: too many consecutive steps had gradients that are not finite; the ranks' copies of the model or
                their ``GradScaler`` differ; the model was wrapped; a parameter that is not trained got a gradient.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        outcome = self.update()
        if not outcome.skipped:
            self.follow(self.steps - 1)
            self.publish()
        for layer in self.layers:
            layer.clear()
        return outcome if closure is None else loss

    def follow(self, step: int) -> None:
        """Update biases and placements from the popularity of a step."""
        for layer in self.layers:
            layer.follow(step)

    @torch.no_grad()
    def publish(self) -> None:
        """Send every rank the weights of the rows that it now holds."""
        for part in self.parts:
            part.publish()

    @torch.no_grad()
    def update(self, logged: Outcome | None = None) -> Outcome:
        """Update the slices with the gradients, then clear the gradients.

        Args:
            logged: for a replay, the outcome of this step in the earlier run, which is used instead of computing it.

        Raises:
            CedarError: see ``step``.
        """
        self._refresh()
        scale, found = self._scaler_state()
        parameters = [p for part in self.parts for p in part.parameters]
        collected = [part.shards.collect(part.gradients(), part.hosts).div_(scale) for part in self.parts]
        if self.mean:
            collected = [gradients.div_(self.group.size) for gradients in collected]
        has = [flag for part in self.parts for flag in part.trained()]
        own = [has] + [[*part.odd()] for part in self.parts]
        votes = self._votes(collected, [*chain.from_iterable(own)])
        outcome = logged or self._decide_outcome(votes)
        flags = votes[:, _VOTE_COLUMNS:].any(0).tolist()
        present, *odd = (flags[end - len(each) : end] for each, end in zip(own, accumulate(map(len, own)), strict=True))
        for part, rows in zip(self.parts, odd, strict=True):
            part.adopt([row for row, differs in enumerate(rows) if differs])
        if not outcome.skipped:
            self._apply_gradients([gradients.mul_(outcome.scale) for gradients in collected], present)
        for p in parameters:
            p.grad = None
        if outcome.skipped and found is None:
            self._count_skip(outcome.ranks)
        return outcome

    def _apply_gradients(self, gradients: Sequence[torch.Tensor], present: Sequence[bool]) -> None:
        """Run a step of the inner optimizer. Parameters without a gradient on any rank stay unchanged."""
        has = iter(present)
        for part, values in zip(self.parts, gradients, strict=True):
            pieces, still = part.shards.parts(values), {*part.still(), *part.shards.frozen}
            for _, labels, _ in part.owned():
                trained = next(has)
                for at in labels:
                    part.shards.slices[at].grad = pieces[at] if trained and at not in still else None
        for (group, rate, decay), inner in zip(self._factors, self.inner.param_groups, strict=True):
            inner |= {name: value for name, value in self.param_groups[group].items() if name != "params"}
            for name, factor in (("lr", rate), ("weight_decay", decay)):
                if name in inner and factor != 1.0:
                    inner[name] = inner[name] * factor
        self.inner.step()
        self.inner.zero_grad()
        self.skips = 0
        self.steps += 1

    def _scaler_state(self) -> tuple[float, float | None]:
        """Return GradScaler's scale and whether it found infinities; it sets both attributes for a step."""
        scale, found = (vars(self).get(name) for name in ("grad_scale", "found_inf"))
        return 1.0 if scale is None else float(scale), None if found is None else float(found)

    def _votes(self, gradients: Sequence[torch.Tensor], flags: Sequence[bool]) -> torch.Tensor:
        """Gather what all ranks report about a step, one row each: float64 ``[ranks, 6 + flags]``.

        The columns: sum of squares of this rank's slices if finite; whether it is not; whether the rank's own gradients
        are not finite; what GradScaler found; its scale; the number of copies of the model; flags.
        """
        squares = sum((g.double().square().sum() for g in gradients), torch.zeros((), dtype=torch.float64)).cpu()
        mine = (p.grad.to_dense() for part in self.parts for p in part.parameters if p.grad is not None)
        bad = not all(bool(torch.isfinite(gradient).all()) for gradient in mine)
        scale, found = self._scaler_state()
        copies = sum(len(followers(layer)) for layer in self.layers)
        own = [
            float(squares.nan_to_num(0.0, 0.0)),
            not torch.isfinite(squares),
            bad,
            found or 0.0,
            scale,
            copies,
            *flags,
        ]
        device = self.parts[0].shards.device
        votes = self.group.gather(torch.tensor(own, dtype=torch.float64, device=device), "vote").cpu()
        if differing_ranks(votes[:, 3].tolist()) or differing_ranks(votes[:, 4].tolist()):
            raise CedarError(
                f"GradScaler found infinite gradients on ranks {votes[:, 3].nonzero().flatten().tolist()} only",
                done="this step changed no weight",
                fix="use torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler on all ranks, and call its"
                " unscale_(optimizer) before its step(optimizer)",
            )
        if differing_ranks(votes[:, 5].tolist()):
            gc.collect()  # some ranks may hold unused copies that were not collected yet
            copies = sum(len(followers(layer)) for layer in self.layers)
            self.group.agree({"copies of the model": copies}, "copy the model on all ranks", device)
        return votes

    def _decide_outcome(self, votes: torch.Tensor) -> Outcome:
        """Decide the outcome of a step. Every element of a gradient is on exactly one rank."""
        ranks = tuple(votes[:, 2].nonzero().flatten().tolist())
        if ranks or votes[:, [1, 3]].any():
            return Outcome(math.nan, 0.0, True, ranks)
        norm = math.sqrt(sum(votes[:, 0].tolist()))
        clip = self.options.clip
        return Outcome(norm, min(1.0, clip / (norm + 1e-6)) if clip else 1.0, False)

    def _count_skip(self, ranks: Sequence[int]) -> None:
        self.skips += 1
        if self.skips > self.options.most_skips:
            where = f"on ranks {list(ranks)}" if ranks else "after they were summed over ranks"
            raise CedarError(
                f"{self.skips} steps in a row had gradients that are not finite, {where}",
                done="no weight was changed",
                fix="lower the learning rate, or check the data of these ranks",
            )

    # ---- state -------------------------------------------------------------------------------------------------------

    def saved(self) -> dict[str, Saved]:
        """Return this rank's slices for trainer checkpoints; complete before the first step only with AdamW."""
        parts = {}
        for part in self.parts:
            for _, labels, size in part.owned():
                for at, label in labels.items():
                    s = part.shards.slices[at]
                    mine = share_of(size, len(s), self.group.rank)
                    for kind, value in {"master": s.data, **self.inner.state[s]}.items():
                        shaped = Saved(value[: len(mine)], (size,), (mine.start,)) if value.dim() else None
                        parts[f"{label}.{kind}"] = shaped or Saved(value, alike=True)
        return parts

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state in torch's layout. With several ranks, tensors are ``DTensor``.

        ``torch.distributed.checkpoint`` can save and load it on different numbers of ranks. Save it together with the
        model's ``state_dict``.
        """
        owned = {p: (part, labels, size) for part in self.parts for p, labels, size in part.owned()}
        for group in self.param_groups:
            for p in group["params"]:
                part, labels, size = owned[p]
                slices = [part.shards.slices[at] for at in labels]
                self.state[p] = pack(slices, self.inner, self._kinds, size, self.group, lambda: self._mesh)
        for _, _, layer in self._leaves:
            basis = torch.tensor(layer.awaited or layer.basis, dtype=torch.int64)
            more = {"basis": basis, "steps": torch.tensor(self.steps)}
            self.state[layer.weights] |= more
        state = super().state_dict()
        self._follow_leaves()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, before or after the model's. Replicas move at the next call of the model.

        Raises:
            CedarError: the state has the slices of another rank or of another number of ranks.
        """
        owned = {p: (part, labels, size) for part in self.parts for p, labels, size in part.owned()}
        order = [owned[p] for group in self.param_groups for p in group["params"]]
        keys = [key for group in state_dict["param_groups"] for key in group["params"]]  # integers or names
        named = {f"at {keys.index(key)}": value for key, value in state_dict["state"].items()}
        super().load_state_dict({**state_dict, "state": named})  # torch's keys would make it cast the state
        given = [self.state.get(f"at {at}") for at in range(len(order))]  # type: ignore[call-overload]
        for (part, labels, _), values in zip(order, given, strict=True):
            if values is not None:  # torch's get_optimizer_state_dict omits frozen parameters
                slices = [part.shards.slices[at] for at in labels]
                unpack(values, slices, self.inner, self._kinds, self.group)
                if isinstance(part, ExpertPart):
                    self.steps = int(values["steps"])
                    part.layer.awaited = tuple(values["basis"].tolist())
                    part.sent = None  # forces the next step to compare all rows with the masters
        self._follow_leaves()

    @cached_property
    def _mesh(self) -> DeviceMesh:
        return DeviceMesh.from_group(self.group.ranks, self.parts[0].shards.master.device.type)

    def __getstate__(self) -> dict[str, Any]:
        raise CedarError(
            "a SymiOptimizer cannot be copied or pickled", fix="copy the model, and create an optimizer for the copy"
        )


_VOTE_COLUMNS = 6  # number of values of a vote before its flags


def _groups(model: nn.Module, layers: Sequence[SymiMoE], *, decays: bool) -> list[dict[str, Any]]:
    """Return groups of all trained parameters, and of experts in any case: decayed ones first, then the others."""
    experts = {layer.weights for layer in layers}
    trained = [p for p in model.parameters() if p.requires_grad or p in experts]
    decayed = [p for p in trained if p.dim() > 1 or p in experts or not decays]
    others = [p for p in trained if p.dim() <= 1 and p not in experts and decays]
    return [{"params": decayed}] + ([{"params": others, "weight_decay": 0.0}] if others else [])


def _check_plain(model: nn.Module) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    for module in model.modules():
        if isinstance(module, DistributedDataParallel | FullyShardedDataParallel):
            refuse_wrapped(type(module).__name__)
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        refuse_wrapped("FSDP")
