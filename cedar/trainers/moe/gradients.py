"""Sends experts' gradients and weights (rows) from the ranks that have them to optimizer slices and to other ranks.

Each rank that has a row sends a slice of the row's gradient to every rank, and the receivers sum the slices. SYMI
(arXiv 2504.19925) first all-reduces over the ranks that have a row, which never sends fewer bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch

from cedar.trainers.common.group import Group

Hosts = Sequence[Sequence[int]]


def slices(sums: torch.Tensor, hosts: Hosts, group: Group, phase: str) -> Iterator[tuple[Sequence[int], torch.Tensor]]:
    """Return this rank's slices of the rows that all ranks have.

    Args:
        sums: ``[held, ranks * width]``: the rows that this rank has, in the order of ``hosts``.
        hosts: for each rank, the rows that it has.
        phase: the phase under which bytes and seconds are counted.

    Returns:
        (rows, their slices ``[rows, width]``) from each rank, in the order of ranks.
    """
    return _exchanged(sums, hosts, [[rows] * group.size for rows in hosts], group, phase)


def slices_from_one(
    values: torch.Tensor, hosts: Hosts, rows: Collection[int], group: Group, phase: str
) -> Iterator[tuple[Sequence[int], torch.Tensor]]:
    """Return this rank's slices of the requested rows, each from one of the ranks that have the row; see ``slices``."""
    holders, ranks = _holders(hosts), range(group.size)
    sent = [
        [[row for row in hosted if row in rows and source_of(holders[row], to) == rank] for to in ranks]
        for rank, hosted in enumerate(hosts)
    ]
    return _exchanged(values, hosts, sent, group, phase)


def moved_rows(values: torch.Tensor, before: Hosts, after: Hosts, group: Group, phase: str) -> torch.Tensor:
    """Return the rows that this rank has under ``after``, ``[held, size]``. ``values``: its rows under ``before``."""
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
    """Return the ranks that have each row, in ascending order."""
    holders: dict[int, list[int]] = {}
    for rank, rows in enumerate(hosts):
        for row in rows:
            holders.setdefault(row, []).append(rank)
    return holders


def _exchanged(
    values: torch.Tensor, hosts: Hosts, sent: Sequence[Sequence[Sequence[int]]], group: Group, phase: str
) -> Iterator[tuple[Sequence[int], torch.Tensor]]:
    """Exchange slices; ``sent[i][j]`` is the list of rows that rank i sends to rank j."""
    place, size = {row: at for at, row in enumerate(hosts[group.rank])}, group.size
    outgoing = [[place[row] * size + to for row in rows] for to, rows in enumerate(sent[group.rank])]
    incoming = [rows[group.rank] for rows in sent]
    index = torch.tensor([at for each in outgoing for at in each], dtype=torch.int64, device=values.device)
    parts, sizes = values.view(len(values) * size, values.shape[1] // size), [*map(len, incoming)]
    received = group.exchange(parts.index_select(0, index), [*map(len, outgoing)], sizes, phase)
    return zip(incoming, torch.split(received, sizes), strict=True)


def source_of(holders: Sequence[int], rank: int) -> int:
    """Return which of the ranks that have a row, ascending, sends ``rank`` its slice (SYMI's Algorithm 2).

    Examples:
        >>> [source_of([1, 2], rank) for rank in range(4)]
        [1, 1, 2, 2]
    """
    return rank if rank in holders else holders[rank % len(holders)]
