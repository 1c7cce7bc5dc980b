"""How rows get from the ranks that hold them to the slices, and to the ranks that hold them next.

Of gradients, ``direct``: each rank that holds a row sends every rank its slice; who gets them adds them up. ``ring``
and ``groups`` are the two steps of SYMI (arXiv 2504.19925): an all-reduce over the ranks that hold a row, then every
rank gets its slice from one of them, itself if it is one. Replicas on one rank share their gradient in all of them.
``ring`` passes pieces on from rank to rank by messages of its own; ``groups`` leaves the all-reduce to
torch.distributed, in process groups made beforehand, one for each run of ranks that follow one another, N (N - 1) / 2
of them: replicas stand side by side, so the ranks that hold an expert are such a run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch

from cedar.trainers.common.group import Group, cut
from cedar.trainers.moe.options import Exchange

Hosts = Sequence[Sequence[int]]


def slices(
    sums: torch.Tensor, hosts: Hosts, group: Group, name: str, way: Exchange
) -> Iterator[tuple[Sequence[int], torch.Tensor]]:
    """This rank's slices of gradients that add up to those of all ranks.

    Args:
        sums: ``[held, ranks * width]``: of the rows that this rank holds, in the order of its ``hosts``.
        hosts: the rows that each rank holds.
        name: what bytes and seconds are counted under: "gradients ..." and, of an all-reduce, "reduction ...".

    Returns:
        (rows, slices of them, ``[rows, width]``), in the order of the ranks that they come from.
    """
    if way == "direct":
        return _exchanged(sums, hosts, [[rows] * group.size for rows in hosts], group, f"gradients {name}")
    holders = _holders(hosts)
    sums = _reduced(sums, [holders[row] for row in hosts[group.rank]], group, f"reduction {name}", way)
    return from_one(sums, hosts, holders, group, f"gradients {name}")


def from_one(
    values: torch.Tensor, hosts: Hosts, rows: Collection[int], group: Group, phase: str
) -> Iterator[tuple[Sequence[int], torch.Tensor]]:
    """This rank's slices of the rows that are asked for, each from one of the ranks that hold it; see ``slices``."""
    holders, ranks = _holders(hosts), range(group.size)
    sent = [
        [[row for row in hosted if row in rows and source_of(holders[row], to) == rank] for to in ranks]
        for rank, hosted in enumerate(hosts)
    ]
    return _exchanged(values, hosts, sent, group, phase)


def moved_rows(values: torch.Tensor, before: Hosts, after: Hosts, group: Group, phase: str) -> torch.Tensor:
    """The rows that this rank holds ``after``, ``[held, size]``, where it holds ``values`` of those ``before``."""
    holders, place = _holders(before), {row: at for at, row in enumerate(before[group.rank])}

    def sent(source: int, to: int) -> list[int]:
        return [row for row in after[to] if source_of(holders[row], to) == source]

    outgoing = [sent(group.rank, to) for to in range(group.size)]
    incoming = [sent(source, group.rank) for source in range(group.size)]
    out = values[[place[row] for rows in outgoing for row in rows]]
    received = group.exchange(out, [*map(len, outgoing)], [*map(len, incoming)], phase)
    order = [row for rows in incoming for row in rows]
    return received[[order.index(row) for row in after[group.rank]]]


def _holders(hosts: Hosts) -> dict[int, list[int]]:
    """The ranks that hold each row, ascending."""
    holders: dict[int, list[int]] = {}
    for rank, rows in enumerate(hosts):
        for row in rows:
            holders.setdefault(row, []).append(rank)
    return holders


def _exchanged(
    values: torch.Tensor, hosts: Hosts, sent: Sequence[Sequence[Sequence[int]]], group: Group, phase: str
) -> Iterator[tuple[Sequence[int], torch.Tensor]]:
    """Slices, where ``sent`` has the rows that each rank sends to each."""
    place, size = {row: at for at, row in enumerate(hosts[group.rank])}, group.size
    outgoing = [[place[row] * size + to for row in rows] for to, rows in enumerate(sent[group.rank])]
    incoming = [rows[group.rank] for rows in sent]
    index = torch.tensor([at for each in outgoing for at in each], dtype=torch.int64, device=values.device)
    parts, sizes = values.view(len(values) * size, values.shape[1] // size), [*map(len, incoming)]
    received = group.exchange(parts.index_select(0, index), [*map(len, outgoing)], sizes, phase)
    return zip(incoming, torch.split(received, sizes), strict=True)


def source_of(holders: Sequence[int], rank: int) -> int:
    """Of the ranks that hold a row, ascending, the one that sends ``rank`` its slice (SYMI's Algorithm 2).

    Example:
        >>> [source_of([1, 2], rank) for rank in range(4)]
        [1, 1, 2, 2]
    """
    return rank if rank in holders else holders[rank % len(holders)]


def _reduced(
    sums: torch.Tensor, holders: Sequence[Sequence[int]], group: Group, phase: str, way: Exchange
) -> torch.Tensor:
    """Each row added up over the ranks that hold it; all of them get the same bits."""
    sums = sums.clone()
    shared = [(row, ranks) for row, ranks in zip(sums.unbind(), holders, strict=True) if len(ranks) > 1]
    if way == "groups":
        group.add_runs([(row, ranks[0], ranks[-1]) for row, ranks in shared], phase)
        return sums
    rings = [(ranks.index(group.rank), ranks, [row[c.start : c.stop] for c in cut(len(row), len(ranks))])
             for row, ranks in shared]  # fmt: skip
    for turn in range(max((2 * len(ranks) - 2 for _, ranks, _ in rings), default=0)):  # all rings turn at once
        sends, receives, merges = [], [], []
        for at, ranks, pieces in rings:
            n = len(ranks)
            if turn < 2 * n - 2:  # n - 1 turns to add up, each a piece in the end; n - 1 to pass the sums on
                sends.append((ranks[(at + 1) % n], pieces[(at - turn) % n]))
                receives.append((ranks[at - 1], torch.empty_like(pieces[(at - turn - 1) % n])))
                merges.append((pieces[(at - turn - 1) % n], turn < n - 1))
        group.swap(sends, receives, phase)
        for (piece, adds), (_, message) in zip(merges, receives, strict=True):
            piece.copy_(piece + message if adds else message)
    return sums
