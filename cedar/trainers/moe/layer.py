"""The layer: route, send to replicas, compute, send back, weigh and add."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from cedar.errors import CedarError
from cedar.trainers.common.group import Group, odd_ranks
from cedar.trainers.moe.dispatch import Dispatch, plan_dispatch
from cedar.trainers.moe.experts import expert_outputs
from cedar.trainers.moe.gather import take_rows
from cedar.trainers.moe.options import ExpertOptions
from cedar.trainers.moe.placement import Placement, place
from cedar.trainers.moe.policies import Basis
from cedar.trainers.moe.routing import Router, Routing, auxiliary_loss, z_loss


class MoELayer(nn.Module):
    """A mixture of experts whose replicas are spread over the ranks of a group.

    The router and the shared experts (DeepSeekMoE, arXiv 2401.06066) are plain parameters, the same on all ranks. The
    weights of the experts that this rank holds are ``weights``, ``[held, 2 * width * hidden]``, in the order of
    ``placement.hosts[rank]``; who sets a placement sets them too.

    Args:
        width: of a token.
        options: how many experts, how they are routed to, what is dropped.
        group: the ranks.
        name: what bytes and seconds are counted under.
    """

    def __init__(self, width: int, options: ExpertOptions, group: Group, name: str = "experts") -> None:
        super().__init__()
        policy = options.follow
        if policy.kind == "oracle" and group.size > 1:
            raise CedarError(
                f"the policy 'oracle' places experts after tokens are routed, which {group.size} ranks cannot",
                fix="run it on one rank: slots = all slots",
            )
        self.width, self.options, self.group, self.policy, self.name = width, options, group, policy, name
        self.router = Router(
            width, options.experts, options.top_k, options.score, renormalise=options.renormalise_gates
        )
        self.shared = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, options.hidden, bias=False), nn.GELU(), nn.Linear(options.hidden, width, bias=False)
            )
            for _ in range(options.shared)
        )
        self.basis: Basis = policy.start(options.experts)
        self.placement = self.place()
        self.weights: torch.Tensor | None = None
        self.still: frozenset[int] = frozenset()  # of this rank's experts, those whose weights need no gradient
        self.clear()

    @property
    def size(self) -> int:
        """Values of one expert."""
        return 2 * self.width * self.options.hidden

    def place(self) -> Placement:
        """The placement that the policy asks for now."""
        return place(self.basis, self.group.size, self.options.slots, self.options.rule)

    def clear(self) -> None:
        """Forget what was counted and added up since the last step."""
        self.counts = torch.zeros(self.options.experts, dtype=torch.int64)
        self.kept = torch.zeros(self.options.experts, dtype=torch.int64)
        self.losses: list[torch.Tensor] = []

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens ``[..., width]`` to answers of that shape; a token that all its experts dropped gets zeros (and what
        the shared experts say).

        While training, copies are counted in ``counts`` and ``kept``, and the losses of the router, this rank's part of
        them, are appended to ``losses``.

        Raises:
            CedarError: ranks hold different placements; an expert's weights were not set.
        """
        flat = tokens.reshape(-1, self.width)
        with self.group.meter.timing(f"routing {self.name}"):
            routing = self.router(flat)
        counts = self._count(routing)
        if self.policy.kind == "oracle":
            self.placement = place(counts.sum(0).tolist(), 1, self.options.slots, self.options.rule)
        with self.group.meter.timing(f"planning {self.name}"):
            way = plan_dispatch(
                routing.experts, routing.gates, counts, self.placement, self.group.rank,
                capacity=self.options.capacity or None, drop=self.options.drop,
            )  # fmt: skip
        if self.training:
            self._account(routing, counts, way)
        out = self._experts(flat, routing, way)
        for expert in self.shared:
            out = out + expert(flat)
        return out.view(tokens.shape)

    def _count(self, routing: Routing) -> torch.Tensor:
        """Copies for each expert on each rank; on the way ranks compare their placements."""
        own = torch.bincount(routing.experts.flatten(), minlength=self.options.experts)
        digest = torch.tensor([self.placement.digest], device=own.device)
        table = self.group.gather(torch.cat([own, digest]), f"counts {self.name}").cpu()
        if odd := odd_ranks(table[:, -1].tolist()):
            raise CedarError(
                f"ranks disagree on where experts are: {odd} have another placement than rank 0",
                done="nothing was sent",
                fix="start all ranks from one checkpoint, with one configuration",
            )
        return table[:, :-1]

    def _account(self, routing: Routing, counts: torch.Tensor, way: Dispatch) -> None:
        self.counts += counts.sum(0)
        self.kept += way.kept.sum(0)
        if self.options.aux_loss:
            self.losses.append(self.options.aux_loss * auxiliary_loss(routing, counts))
        if self.options.z_loss:
            self.losses.append(self.options.z_loss * z_loss(routing, counts))

    def _experts(self, flat: torch.Tensor, routing: Routing, way: Dispatch) -> torch.Tensor:
        k = routing.experts.shape[1]
        if self.weights is None or len(self.weights) != len(way.rows):
            raise CedarError("the weights of this rank's experts were not set", fix="publish the optimizer's first")
        out = take_rows(flat, way.copies // k, way.places)
        got: torch.Tensor = _Exchange.apply(out, self.group, way.send, way.receive, self.name)  # type: ignore[no-untyped-call]
        ordered = take_rows(got, way.order, way.undo[:, None])
        with self.group.meter.timing(f"experts {self.name}"):
            answers = expert_outputs(ordered, way.rows, self.weights, self.options.hidden, still=self.still)
        answers = take_rows(answers, way.undo, way.order[:, None])
        home: torch.Tensor = _Exchange.apply(answers, self.group, way.receive, way.send, self.name)  # type: ignore[no-untyped-call]
        own = take_rows(home, way.places.flatten(), way.copies[:, None]).view(len(flat), k, self.width)
        gates = routing.gates.to(flat.dtype)
        total = own[:, 0] * gates[:, :1]
        for at in range(1, k):
            total = total + own[:, at] * gates[:, at : at + 1]
        return total


class _Exchange(torch.autograd.Function):
    """Rows to their ranks; gradients go the same way back."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, group: Group, send: list[int], receive: list[int], name: str
    ) -> torch.Tensor:
        ctx.group, ctx.send, ctx.receive, ctx.phase = group, send, receive, f"tokens {name}"
        return group.exchange(rows, send, receive, ctx.phase)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        return ctx.group.exchange(grads[0], ctx.receive, ctx.send, ctx.phase), None, None, None, None
