"""The decoupled optimizer: gradients to the static shards, AdamW there, new weights to wherever experts live next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from cedar.core.errors import CedarError
from cedar.trainers.common.tensors import Part as Saved
from cedar.trainers.moe.layer import mixtures
from cedar.trainers.moe.options import OptimizerOptions
from cedar.trainers.moe.shards import DensePart, ExpertPart, Part


@dataclass(frozen=True)
class Outcome:
    """What became of a step."""

    norm: float  # of all gradients together, each element counted once; NaN where the step was skipped
    scale: float  # that gradients were multiplied by, 1.0 where nothing was clipped
    skipped: bool  # some gradient was not finite, so all ranks left all weights as they were
    ranks: tuple[int, ...] = ()  # whose own gradients were not finite


@dataclass(frozen=True)
class ReplayRecord:
    """What a step needs to be run again, bit for bit, by ranks that do not hold all gradients."""

    step: int  # from 0
    counts: tuple[tuple[int, ...], ...]
    outcome: Outcome  # the norm, the clip scale and the vote
    rate: float
    bias: tuple[tuple[float, ...], ...]  # of each layer's router, before the step
    key: tuple[int, int]  # what its random numbers follow from: seed and step


class SymiOptimizer:
    """AdamW for a model with ``SymiMoE`` layers: state is spread evenly over the ranks and never moves.

    Clipping is by the norm of all gradients together (arXiv 1211.5063). In a loop of one's own, call ``step`` after the
    backward pass, in place of another optimizer's, and nothing else: gradients are added up over ranks, replicas follow
    popularity, every rank gets the weights that it needs next. (``add``, ``update``, ``follow`` and ``publish`` are its
    parts, for several backward passes to a step.)

    Args:
        model: holds at least one such layer; on the device where it computes.
        options: of AdamW: ``rate`` is the learning rate unless ``step`` is given one.
        mean: divide gradients by the number of ranks, as DistributedDataParallel does: for losses that are means over a
            rank's rows. Else they are sums.
        dtype: of the weights that are computed with; None: that of the experts. Master weights are float32 at least.
        row: values of a piece of what all ranks hold, at most; None: as many as an expert has.

    Raises:
        CedarError: no such layer is there, two have one name, or the model is wrapped in DDP or FSDP.
    """

    def __init__(
        self, model: nn.Module, options: OptimizerOptions | None = None, *, mean: bool = True,
        dtype: torch.dtype | None = None, row: int | None = None,
    ) -> None:  # fmt: skip
        self.layers, self.options, self.mean = mixtures(model), options or OptimizerOptions(), mean
        if not self.layers:
            raise CedarError("the model has no SymiMoE", fix="use an optimizer of torch.optim")
        _check_plain(model)
        for at, layer in enumerate(self.layers):
            layer.name = f"{layer.name}{at}" if layer.name == "experts" else layer.name
        if len({layer.name for layer in self.layers}) < len(self.layers):
            raise CedarError("two SymiMoE have one name", fix="give each layer its own name=")
        self.group, first = self.layers[0].group, self.layers[0]
        dtype = dtype or first.weights.dtype
        apart = {id(layer.weights) for layer in self.layers}
        dense = [p for p in model.parameters() if p.requires_grad and id(p) not in apart]
        if self.options.exchange == "groups":
            self.group.register_runs()
        self.parts: list[Part] = [ExpertPart(layer, dtype=dtype, options=self.options) for layer in self.layers]
        if dense:
            every = DensePart(dense, self.group, row=row or first.experts.size, dtype=dtype, options=self.options)
            self.parts.insert(0, every)
        self.steps = 0
        self.skips = 0
        self.publish()

    def step(self, rate: float | None = None) -> Outcome:
        """One step with the gradients of the last backward pass.

        Raises:
            CedarError: too many steps in a row had gradients that are not finite.
        """
        self.add()
        outcome = self.update(self.options.rate if rate is None else rate)
        if not outcome.skipped:
            self.follow(self.steps - 1)
            self.publish()
        for layer in self.layers:
            layer.clear()
        return outcome

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients that no ``step`` has taken."""
        for part in self.parts:
            part.add()
            part.sums.zero_()

    def follow(self, step: int) -> None:
        """Move biases and placements after the popularity of a step."""
        for layer in self.layers:
            layer.follow(step)

    def saved(self) -> dict[str, Saved]:
        """The slices of this rank, of all rows, as checkpoints take them."""
        return {name: part for each in self.parts for name, part in each.shards.saved().items()}

    def state_dict(self) -> dict[str, Any]:
        """What this rank holds of it: for as many ranks. ``saved`` is for checkpoints that other numbers can load."""
        layers = {layer.name: {"basis": list(layer.basis)} for layer in self.layers}
        tensors = {name: part.tensor.clone() for name, part in self.saved().items()}
        return {"steps": self.steps, "skips": self.skips, "layers": layers, "tensors": tensors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it again; all ranks call it, after the model's ``load_state_dict``, whose weights follow from it."""
        self.steps, self.skips = state["steps"], state["skips"]
        for layer in self.layers:
            layer.basis = tuple(state["layers"][layer.name]["basis"])
            layer.placement = layer.place()
        for name, part in self.saved().items():
            part.tensor.copy_(state["tensors"][name])
        self.publish()

    def add(self) -> None:
        """Add the gradients of a backward pass to those of the step."""
        for part in self.parts:
            part.add()

    @torch.no_grad()
    def update(self, rate: float, logged: Outcome | None = None) -> Outcome:
        """One step with the gradients added up.

        Args:
            rate: the learning rate.
            logged: what became of this step when it was run before; it is not worked out again.

        Raises:
            CedarError: too many steps in a row had gradients that are not finite.
        """
        collected = [part.shards.collect(part.sums, part.hosts) for part in self.parts]
        if self.mean:
            collected = [gradients.div_(self.group.size) for gradients in collected]
        outcome = logged or self._judge(collected)
        if outcome.skipped:
            self.skips += 1
            for part in self.parts:
                part.sums.zero_()
            if self.skips > self.options.most_skips:
                where = f"on ranks {list(outcome.ranks)}" if outcome.ranks else "once they were added up over ranks"
                raise CedarError(
                    f"{self.skips} steps in a row had gradients that are not finite, {where}",
                    done="no weight was changed by them",
                    fix="lower the learning rate, or look at the data of these ranks",
                )
            return outcome
        self.skips = 0
        self.steps += 1
        for part, gradients in zip(self.parts, collected, strict=True):
            part.shards.update(
                gradients.mul_(outcome.scale), rate=rate, decay=self.options.decay, betas=self.options.betas,
                eps=self.options.eps, step=self.steps, still=part.still(inactive=self.options.skip_inactive),
            )  # fmt: skip
        return outcome

    def _judge(self, gradients: Sequence[torch.Tensor]) -> Outcome:
        """The norm and the vote on it, in one exchange; every element of a gradient is on exactly one rank."""
        squares = sum((g.double().square().sum() for g in gradients), torch.zeros((), dtype=torch.float64)).cpu()
        own = all(bool(torch.isfinite(part.sums).all()) for part in self.parts)
        vote = torch.zeros(2 + self.group.size, dtype=torch.float64)
        vote[0] = torch.nan_to_num(squares, nan=0.0, posinf=0.0)
        vote[1] = not torch.isfinite(squares)
        vote[2 + self.group.rank] = not own
        total = self.group.add(vote.to(self.parts[0].sums.device), "vote").tolist()
        ranks = tuple(rank for rank, bad in enumerate(total[2:]) if bad)
        if total[1] or ranks:
            return Outcome(math.nan, 0.0, True, ranks)
        norm = math.sqrt(total[0])
        clip = self.options.clip
        return Outcome(norm, min(1.0, clip / (norm + 1e-6)) if clip else 1.0, False)

    @torch.no_grad()
    def publish(self) -> None:
        """Send every rank the weights of the rows that it holds from now on."""
        for part in self.parts:
            part.take(part.shards.publish(part.hosts))


def _check_plain(model: nn.Module) -> None:
    from torch.distributed.tensor import DTensor
    from torch.nn.parallel import DistributedDataParallel

    wrapped = [type(part).__name__ for part in model.modules() if isinstance(part, DistributedDataParallel)]
    if wrapped or any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise CedarError(
            f"the model is wrapped in {wrapped[0] if wrapped else 'FSDP'}, to which the experts of all ranks are alike",
            fix="give the model itself: SymiOptimizer adds up gradients over ranks and spreads optimizer state",
        )
