"""Plans the replica that computes each token, which tokens are dropped, and how many rows ranks send to each other.

Every rank computes the plan from the number of tokens per expert and rank, which all ranks have, so ranks need not
exchange sizes. Rows and their gradients are gathered by index, not scattered, so that sums have a fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import torch
from torch.nn import functional

from cedar.trainers.moe.placement import Placement


def take_rows(rows: torch.Tensor, index: torch.Tensor, back: torch.Tensor) -> torch.Tensor:
    """Return ``rows[index]``. The backward pass uses ``back``, the positions in the result that hold each row.

    Args:
        rows: ``[n, width]``.
        index: int64 ``[m]``; the value ``n`` selects a row of zeros.
        back: int64 ``[n, k]``: the positions in ``index`` of each row; ``m`` means none. The gradient of a row is the
            sum over k, in that order.

    Returns:
        ``[m, width]``.

    Examples:
        >>> rows = torch.tensor([[1.0], [2.0]], requires_grad=True)
        >>> taken = take_rows(rows, torch.tensor([1, 0, 1]), torch.tensor([[1, 3], [0, 2]]))
        >>> taken.sum().backward()
        >>> taken.flatten().tolist(), rows.grad.flatten().tolist()
        ([2.0, 1.0, 2.0], [1.0, 2.0])
    """
    taken: torch.Tensor = _Take.apply(rows, index, back)  # type: ignore[no-untyped-call]
    return taken


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, index: torch.Tensor, back: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(back)
        return functional.pad(rows, (0, 0, 0, 1)).index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (back,) = ctx.saved_tensors
        (grad,) = grads
        gathered = functional.pad(grad, (0, 0, 0, 1)).index_select(0, back.flatten()).view(*back.shape, grad.shape[1])
        total = gathered[:, 0]
        for at in range(1, gathered.shape[1]):
            total = total + gathered[:, at]
        return total, None, None


Drop = Literal["position", "probability"]


@dataclass(frozen=True)
class Dispatch:
    """The plan for sending this rank's copies of tokens (one per selected expert) to their experts and back."""

    copies: torch.Tensor  # int64 ``[sent]``: the kept copies, in the order of sending
    places: torch.Tensor  # int64 ``[tokens, k]``: each copy's position in that order; ``sent`` if it was dropped
    send: list[int]
    receive: list[int]
    order: torch.Tensor  # int64 ``[received]``: permutes received rows, ordered by rank, to the order of experts
    undo: torch.Tensor  # int64 ``[received]``: the inverse of ``order``
    rows: list[int]  # number of rows of each of this rank's experts
    kept: torch.Tensor  # int64 ``[ranks, experts]``: number of kept copies of each rank


def limits(counts: torch.Tensor, placement: Placement, capacity: float | None) -> torch.Tensor:
    """Return how many copies each expert accepts: its replicas times the limit of a slot, ceil(capacity * copies /
    slots). ``counts``: int64 ``[ranks, experts]``; ``capacity``: a slot's limit relative to an even share; None: no
    limit.

    Returns:
        int64 ``[experts]``.

    Examples:
        >>> limits(torch.tensor([[6, 2]]), Placement((3, 1), 1, 4), 1.0).tolist()
        [6, 2]
    """
    copies = int(counts.sum())
    if capacity is None:
        return torch.full((counts.shape[1],), copies)
    share = Fraction(str(capacity)) * copies / (placement.ranks * placement.slots)
    return torch.tensor(placement.replicas) * -(-share.numerator // share.denominator)


def kept_copies(counts: torch.Tensor, limit: torch.Tensor, drop: Drop) -> torch.Tensor:
    """Return how many copies of each rank each expert keeps, if there are more copies than its limit.

    ``position``: keep the copies of the lowest ranks first (Switch Transformers, arXiv 2101.03961). ``probability``:
    each rank keeps its share, rounded by largest remainders (Hamilton's method; ties go to the lowest rank); the rank
    keeps its most probable copies (batch prioritized routing, arXiv 2106.05974). ``counts``: int64 ``[ranks,
    experts]``; ``limit``: int64 ``[experts]``.

    Returns:
        int64 ``[ranks, experts]``.

    Examples:
        >>> counts = torch.tensor([[4], [2]])
        >>> kept_copies(counts, torch.tensor([3]), "position").flatten().tolist()
        [3, 0]
        >>> kept_copies(counts, torch.tensor([3]), "probability").flatten().tolist()
        [2, 1]
    """
    if drop == "position":
        before = counts.cumsum(0) - counts
        return (limit - before).clamp(min=0).minimum(counts)
    total = counts.sum(0)
    some = total.clamp(min=1)
    share, rest = counts * limit // some, counts * limit % some
    missing = limit - share.sum(0)
    turn = torch.argsort(torch.argsort(rest, dim=0, descending=True, stable=True), dim=0)
    return torch.where(total <= limit, counts, share + (turn < missing))


def plan_dispatch(
    experts: torch.Tensor, gates: torch.Tensor, counts: torch.Tensor, placement: Placement, rank: int, *,
    capacity: float | None, drop: Drop = "position",
) -> Dispatch:  # fmt: skip
    """Plan the route of every copy of a token.

    The kept copies of an expert are numbered across ranks, and copy g goes to replica g mod r (of r replicas), so the
    loads of replicas differ by at most one.

    Args:
        experts: int64 ``[tokens, k]``: the experts of this rank's tokens.
        gates: ``[tokens, k]``: gate values, by which ``drop="probability"`` ranks copies.
        counts: int64 ``[ranks, experts]`` on the CPU: number of copies per rank and expert.
        capacity: limit of a slot relative to an even share; None: drop nothing.
    """
    kept = kept_copies(counts, limits(counts, placement, capacity), drop)
    before = kept.cumsum(0) - kept
    replicas = torch.tensor(placement.replicas)
    first = replicas.cumsum(0) - replicas
    sent, own, received = _sizes(kept, before, replicas, first, placement, rank)

    device, flat = experts.device, experts.flatten()
    own_kept, own_before, r, at = (t.to(device) for t in (kept[rank], before[rank], replicas, first))
    if drop == "probability":
        likely = torch.argsort(gates.detach().flatten(), descending=True, stable=True)
        sorted_copies = likely[torch.argsort(flat[likely], stable=True)]
    else:
        sorted_copies = torch.argsort(flat, stable=True)
    of = flat[sorted_copies]
    start = (counts[rank].cumsum(0) - counts[rank]).to(device)
    number = torch.arange(len(flat), device=device) - start[of]
    stays = number < own_kept[of]
    of, number, sorted_copies = of[stays], number[stays], sorted_copies[stays]
    slot = at[of] + (own_before[of] + number) % r[of]
    copies = sorted_copies[torch.argsort(slot, stable=True)]
    places = torch.full_like(flat, len(copies))
    places[copies] = torch.arange(len(copies), device=device)
    return Dispatch(
        copies, places.view(experts.shape), sent, own.sum(1).tolist(), _regroup(own).to(device),
        _regroup(own.T.contiguous()).to(device), received, kept,
    )  # fmt: skip


def _sizes(
    kept: torch.Tensor, before: torch.Tensor, replicas: torch.Tensor, first: torch.Tensor, placement: Placement,
    rank: int,
) -> tuple[list[int], torch.Tensor, list[int]]:  # fmt: skip
    """Return row counts: sent to each rank; received by sender and local expert; and of each local expert."""
    of = torch.tensor(placement.experts)
    replica = torch.arange(len(of)) - first[of]
    begin, end, r = before[:, of], (before + kept)[:, of], replicas[of]
    per_slot = _ceil_div(end - replica, r) - _ceil_div(begin - replica, r)  # numbers in [begin, end) for this replica
    by_rank = per_slot.view(placement.ranks, placement.ranks, placement.slots)
    hosted = placement.hosts[rank]
    here = {expert: at for at, expert in enumerate(hosted)}
    local = torch.tensor([here[e] for e in placement.experts[rank * placement.slots : (rank + 1) * placement.slots]])
    own = torch.zeros(placement.ranks, len(hosted), dtype=torch.int64).index_add_(1, local, by_rank[:, rank])
    return by_rank[rank].sum(1).tolist(), own, own.sum(0).tolist()


def _ceil_div(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the quotients, rounded up."""
    return -torch.div(-a, b, rounding_mode="floor")


def _regroup(own: torch.Tensor) -> torch.Tensor:
    """Return the indices that reorder blocks, stored row by row in a table, to column by column."""
    lengths = own.flatten()
    starts = (lengths.cumsum(0) - lengths).view(own.shape).T.flatten()
    return spans(starts, own.T.flatten())


def spans(starts: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Concatenate ranges of integers.

    Examples:
        >>> spans(torch.tensor([5, 0]), torch.tensor([2, 3])).tolist()
        [5, 6, 0, 1, 2]
    """
    ends = lengths.cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    return torch.arange(total) + (starts - ends + lengths).repeat_interleave(lengths)
