"""The decoupled optimizer: gradients to the static shards, AdamW there, new weights to wherever experts live next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cedar.errors import CedarError
from cedar.trainers.common.group import Group
from cedar.trainers.moe.options import OptimizerOptions
from cedar.trainers.moe.parts import Part


@dataclass(frozen=True)
class Outcome:
    """What became of a step.

    Args:
        norm: of all gradients together, each element counted once; NaN where the step was skipped.
        scale: that gradients were multiplied by, 1.0 where nothing was clipped.
        skipped: some gradient was not finite, so all ranks left all weights as they were.
        ranks: whose own gradients were not finite.
    """

    norm: float
    scale: float
    skipped: bool
    ranks: tuple[int, ...] = ()


class Optimizer:
    """AdamW over parts whose state is spread evenly over the ranks and never moves (SYMI, arXiv 2504.19925).

    Clipping is by the norm of all gradients together (arXiv 1211.5063).

    Call ``add`` after each backward pass, ``update`` once per step, then, where experts live from now on being decided,
    ``publish``. Gradients are sums over ranks: divide the loss by the tokens of the whole step (or by the number of
    ranks), never by replicas.

    Args:
        parts: of the model.
        group: the ranks.
        options: of AdamW.
    """

    def __init__(self, parts: Sequence[Part], group: Group, options: OptimizerOptions) -> None:
        self.parts, self.group, self.options = list(parts), group, options
        self.steps = 0
        self.skips = 0

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
        found = [part.shards.collect(part.sums, part.hosts) for part in self.parts]
        outcome = logged or self._judge(found)
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
        for part, gradients in zip(self.parts, found, strict=True):
            part.shards.update(
                gradients.mul_(outcome.scale),
                rate=rate,
                decay=self.options.decay,
                betas=self.options.betas,
                eps=self.options.eps,
                step=self.steps,
                still=part.idle() if self.options.skip_inactive else (),
            )
        return outcome

    def _judge(self, found: Sequence[torch.Tensor]) -> Outcome:
        """The norm and the vote on it, in one exchange; every element of a gradient is on exactly one rank."""
        squares = sum((g.double().square().sum() for g in found), torch.zeros((), dtype=torch.float64)).cpu()
        own = all(bool(torch.isfinite(part.sums).all()) for part in self.parts)
        vote = torch.zeros(2 + self.group.size, dtype=torch.float64)
        vote[0] = torch.nan_to_num(squares, nan=0.0, posinf=0.0)
        vote[1] = not torch.isfinite(squares)
        vote[2 + self.group.rank] = not own
        total = self.group.add(vote.to(found[0].device), "vote").tolist()
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
