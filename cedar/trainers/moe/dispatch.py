"""Which token goes to which replica, which is dropped, and how many rows every rank sends to every other.

All of it follows from one table that every rank holds, the tokens of each expert on each rank: no sizes are exchanged.
Rows are taken by index, with a gradient that takes rows by index too: no scatter, so sums have one order.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import torch
from torch.nn import functional

from cedar.trainers.moe.placement import Placement


def take_rows(rows: torch.Tensor, index: torch.Tensor, back: torch.Tensor) -> torch.Tensor:
    """``rows[index]``, where ``back`` says which results came from each row.

    Args:
        rows: ``[n, width]``.
        index: int64 ``[m]``; ``n`` stands for a row of zeros.
        back: int64 ``[n, k]``: the places in ``index`` that hold each row; ``m`` stands for none. Its gradient is the
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
    """The way of this rank's copies of tokens (a token has as many as experts) to their experts, and back."""

    copies: torch.Tensor  # int64 ``[sent]``: the copies that are kept, in the order in which they are sent
    places: torch.Tensor  # int64 ``[tokens, k]``: where in that order each copy is; ``sent`` where it was dropped
    send: list[int]
    receive: list[int]
    order: torch.Tensor  # int64 ``[received]``: puts what was received, which comes rank by rank, expert by expert
    undo: torch.Tensor  # int64 ``[received]``: the inverse of ``order``
    rows: list[int]  # of each expert of this rank, after ``order``
    kept: torch.Tensor  # int64 ``[ranks, experts]``: copies of each rank that were kept


def limits(counts: torch.Tensor, placement: Placement, capacity: float | None) -> torch.Tensor:
    """How many copies each expert takes: its replicas times what a slot takes, ceil(capacity * copies / slots).
    ``counts``: int64 ``[ranks, experts]``; ``capacity``: of a slot, 1.0 being an even share; None: no limit.

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
    """How many copies of each rank an expert takes, if there are more than its limit.

    ``position``: those of the lowest ranks, as if ranks stood in a queue (Switch Transformers, arXiv 2101.03961).
    ``probability``: each rank its share, rounded by largest remainders (Hamilton's method; ties go to the lowest rank);
    which of its copies is for the rank to say: the likeliest (batch prioritized routing, arXiv 2106.05974). ``counts``:
    int64 ``[ranks, experts]``; ``limit``: int64 ``[experts]``.

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
    """The way of every copy of a token.

    Kept copies of an expert are numbered over all ranks; number g goes to replica g mod r, so that the loads of
    replicas differ by one at most.

    Args:
        experts: int64 ``[tokens, k]``: of this rank's tokens.
        gates: ``[tokens, k]``: what ``drop="probability"`` goes by.
        counts: int64 ``[ranks, experts]`` on the CPU: copies for each expert on each rank.
        capacity: of a slot, 1.0 being an even share; None: nothing is dropped.
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
    """Rows that this rank sends to each, rows by sender and own expert, and rows of each own expert."""
    of = torch.tensor(placement.experts)
    replica = torch.arange(len(of)) - first[of]
    begin, end, r = before[:, of], (before + kept)[:, of], replicas[of]
    per_slot = _up(end - replica, r) - _up(begin - replica, r)  # numbers in [begin, end) that are this replica's
    by_rank = per_slot.view(placement.ranks, placement.ranks, placement.slots)
    hosted = placement.hosts[rank]
    here = {expert: at for at, expert in enumerate(hosted)}
    local = torch.tensor([here[e] for e in placement.experts[rank * placement.slots : (rank + 1) * placement.slots]])
    own = torch.zeros(placement.ranks, len(hosted), dtype=torch.int64).index_add_(1, local, by_rank[:, rank])
    return by_rank[rank].sum(1).tolist(), own, own.sum(0).tolist()


def _up(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The quotients, rounded up."""
    return -torch.div(-a, b, rounding_mode="floor")


def _regroup(own: torch.Tensor) -> torch.Tensor:
    """Where the rows of a table of blocks, stored line by line, are found when they are read column by column."""
    lengths = own.flatten()
    starts = (lengths.cumsum(0) - lengths).view(own.shape).T.flatten()
    return spans(starts, own.T.flatten())


def spans(starts: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Runs of integers one after the other.

    Examples:
        >>> spans(torch.tensor([5, 0]), torch.tensor([2, 3])).tolist()
        [5, 6, 0, 1, 2]
    """
    ends = lengths.cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    return torch.arange(total) + (starts - ends + lengths).repeat_interleave(lengths)
