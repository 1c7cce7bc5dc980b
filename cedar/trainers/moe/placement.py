"""Computes the number and ranks of each expert's replicas, in exact integers, so that all ranks get the same result.

A policy turns the token counts of a step into the *basis*, the popularity from which the next placement is computed.
The basis is the policy's whole state; placements are not saved. The rule ``paper`` is Algorithm 1 of SYMI (arXiv
2504.19925). The rule ``minmax`` assigns each slot to the expert with the most tokens per replica (Adams' method of
apportionment), which minimizes the largest load per replica.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal, get_args

from cedar.core.errors import CedarError
from cedar.trainers.common.compute import digest

Kind = Literal["symi", "static", "periodic", "ema", "oracle"]
Basis = tuple[int, ...]

_UNIT = 1 << 16  # moving averages are integers with 16 fractional bits


@dataclass(frozen=True)
class Policy:
    """How the placement follows the token counts.

    Args:
        kind: ``symi`` (counts of the last step, arXiv 2504.19925), ``static`` (always equal), ``periodic`` (counts of
            every ``every``-th step), ``ema`` (a moving average), ``oracle`` (counts of the current step, as an upper
            bound; only for a single rank, where no weights have to be sent).
        every: steps between changes with ``periodic``.
        decay: weight of the past in each step of ``ema``.

    Examples:
        >>> Policy("periodic", every=2).follow((1, 1), (7, 3), step=0)
        (1, 1)
        >>> Policy("periodic", every=2).follow((1, 1), (7, 3), step=1)
        (7, 3)
    """

    kind: Kind = "symi"
    every: int = 10
    decay: float = 0.9

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"there is no policy {self.kind!r}; known: {', '.join(get_args(Kind))}")
        if self.every < 1:
            raise ValueError(f"every is {self.every}: give 1 or more")
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay is {self.decay}: give 0 or more, and less than 1")

    def start(self, experts: int) -> Basis:
        """Return the basis before the first step."""
        return (0,) * experts

    def follow(self, basis: Basis, counts: Sequence[int], step: int) -> Basis:
        """Return the basis after a step with these counts. A step without tokens changes nothing."""
        counts = tuple(int(count) for count in counts)
        if not any(counts) or self.kind == "static":
            return basis
        if self.kind == "periodic":
            return counts if (step + 1) % self.every == 0 else basis
        if self.kind == "ema":
            past = round(self.decay * _UNIT) if any(basis) else 0
            return tuple((b * past + c * _UNIT * (_UNIT - past)) // _UNIT for b, c in zip(basis, counts, strict=True))
        return counts


def paper(popularity: Sequence[int], slots: int) -> tuple[int, ...]:
    """Return replica counts proportional to popularity, at least one each; ties go to the lowest index.

    The published loop also considers experts with one replica, only to skip them. This version omits them; the result
    is the same, in at most as many iterations as there are experts. ``popularity``: tokens of each expert, not
    negative; all zeros count as equal; ``slots``: total over all ranks.

    Examples:
        >>> paper([6, 1, 1], 8)
        (6, 1, 1)
        >>> paper([98, 1, 1], 8)
        (6, 1, 1)
    """
    wanted = _checked(popularity, slots)
    total = sum(wanted)
    counts = [max(1, count * slots // total) for count in wanted]
    surplus = [counts[e] * total - count * slots for e, count in enumerate(wanted)]  # in units of 1 / total
    over = sum(counts) - slots
    if over > 0:
        most = [(-extra, e) for e, extra in enumerate(surplus) if counts[e] > 1]
        heapq.heapify(most)
        for _ in range(over):
            extra, e = heapq.heappop(most)
            counts[e] -= 1
            if counts[e] > 1:
                heapq.heappush(most, (extra + total, e))
    else:
        least = [(extra, e) for e, extra in enumerate(surplus)]
        heapq.heapify(least)
        for _ in range(-over):
            extra, e = least[0]
            counts[e] += 1
            heapq.heapreplace(least, (extra + total, e))
    return tuple(counts)


def minmax(popularity: Sequence[int], slots: int) -> tuple[int, ...]:
    """Return the replicas that minimize the largest load per replica, at least one each; ties go to the lowest index.

    Assigning slots one by one would take one iteration per slot. No expert gets more than its share rounded up, so this
    starts there and removes the excess, in at most as many iterations as there are experts. ``popularity``: tokens of
    each expert, not negative; all zeros count as equal; ``slots``: total over all ranks.

    Examples:
        >>> minmax([60, 25, 15], 8)
        (5, 2, 1)
    """
    wanted = _checked(popularity, slots)
    total = sum(wanted)
    counts = [max(1, -(-count * slots // total)) for count in wanted]
    last = [(Fraction(count, counts[e] - 1), -e) for e, count in enumerate(wanted) if counts[e] > 1]
    heapq.heapify(last)  # for each expert, the load per replica if it had one replica less
    for _ in range(sum(counts) - slots):
        _, e = heapq.heappop(last)
        counts[-e] -= 1
        if counts[-e] > 1:
            heapq.heappush(last, (Fraction(wanted[-e], counts[-e] - 1), e))
    return tuple(counts)


RULES: dict[str, Callable[[Sequence[int], int], tuple[int, ...]]] = {"paper": paper, "minmax": minmax}


def _checked(popularity: Sequence[int], slots: int) -> list[int]:
    counts = [int(count) for count in popularity]
    if slots < len(counts):
        raise CedarError(
            f"{len(counts)} experts do not fit into {slots} slots: each needs at least one",
            fix="give more slots per rank (experts.slots), more ranks, or fewer experts",
        )
    if any(count < 0 for count in counts):
        raise CedarError(f"popularity must not be negative: {counts}", fix="give the number of tokens of each expert")
    return counts if any(counts) else [1] * len(counts)


@dataclass(frozen=True)
class Placement:
    """The expert in each slot. An expert's replicas are in consecutive slots, and the slots of a rank are consecutive.

    Examples:
        >>> Placement((3, 1, 2), ranks=2, slots=3).hosts
        ((0,), (1, 2))
    """

    replicas: tuple[int, ...]  # replicas of each expert; their sum is ranks * slots
    ranks: int
    slots: int

    def __post_init__(self) -> None:
        if min(self.replicas) < 1 or sum(self.replicas) != self.ranks * self.slots:
            raise CedarError(
                f"replicas {self.replicas} do not fill {self.ranks} ranks of {self.slots} slots",
                fix="give every expert at least one replica, and every slot an expert",
            )

    @cached_property
    def experts(self) -> tuple[int, ...]:
        """The expert in each slot of all ranks."""
        return tuple(expert for expert, count in enumerate(self.replicas) for _ in range(count))

    @cached_property
    def hosts(self) -> tuple[tuple[int, ...], ...]:
        """For each rank, the distinct experts on it, ascending."""
        cut = (self.experts[rank * self.slots : (rank + 1) * self.slots] for rank in range(self.ranks))
        return tuple(tuple(sorted(set(slots))) for slots in cut)

    @cached_property
    def digest(self) -> int:
        """A 63-bit hash that compares placements between ranks."""
        return digest((self.replicas, self.ranks, self.slots))

    def moved(self, other: Placement) -> int:
        """Return how many replicas another placement assigns to other experts."""
        return sum(abs(a - b) for a, b in zip(self.replicas, other.replicas, strict=True)) // 2


def place(popularity: Sequence[int], ranks: int, slots: int, rule: str = "paper") -> Placement:
    """Return the placement for a popularity.

    Examples:
        >>> place([5, 1, 1, 1], ranks=2, slots=4).replicas
        (5, 1, 1, 1)
    """
    return Placement(RULES[rule](popularity, ranks * slots), ranks, slots)
