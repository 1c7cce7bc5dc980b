"""Sums of gradients over the workers of a stage.

Each worker of the group adds up one slice of the vector, for all; then slices are exchanged. A sum is made element by
element, so slices change no bit of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import torch

from cedar.trainers.resilient.executor.transport import Transport
from cedar.trainers.resilient.schedule import Worker

Reduction: TypeAlias = Literal["exact", "fast"]
Row: TypeAlias = tuple[int, int, int]  # replica, micro-batch, stage


def reduce(
    transport: Transport, me: Worker, group: Sequence[Worker], rows: Mapping[Row, torch.Tensor],
    owners: Mapping[Row, Worker], like: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """The sum of the rows of all workers in the order of their keys, the same bits whoever has which row.

    Args:
        transport: to the others.
        me: this worker.
        group: all who meet, in the same order everywhere.
        rows: this worker's, ``[size]`` each.
        owners: who has which row.
        like: of the size, the dtype and the device of a row.

    Returns:
        ``[size]``.
    """
    keys, size = sorted(owners), len(like)
    parts = bounds(size, len(group))
    held = {worker: [key for key in keys if owners[key] == worker] for worker in group}
    here = parts[group.index(me)]
    for other in group:
        if other != me and held[other]:
            transport.expect(other, (len(held[other]), here.stop - here.start), like.dtype)
    mine = torch.stack([rows[key] for key in held[me]]) if held[me] else like.new_empty(0, size)
    for other, part in zip(group, parts, strict=True):
        if other != me and held[me]:
            transport.send(other, mine[:, part.start : part.stop].contiguous())
    slices: dict[Row, torch.Tensor] = dict(zip(held[me], mine[:, here.start : here.stop], strict=True))
    for other in group:
        if other != me and held[other]:
            slices.update(zip(held[other], transport.receive(other), strict=True))
    total = like.new_zeros(here.stop - here.start)
    for key in keys:
        total += slices[key]
    return _exchange(transport, me, group, total, parts)


def _exchange(
    transport: Transport, me: Worker, group: Sequence[Worker], mine: torch.Tensor, parts: Sequence[range]
) -> torch.Tensor:
    for other, part in zip(group, parts, strict=True):
        if other != me:
            transport.expect(other, (len(part),), mine.dtype)
            transport.send(other, mine)
    return torch.cat([mine if other == me else transport.receive(other) for other in group])


def bounds(size: int, count: int) -> list[range]:
    """``count`` slices of ``size``, their lengths differ by one at most.

    Example:
        >>> bounds(5, 2)
        [range(0, 2), range(2, 5)]
    """
    return [range(size * at // count, size * (at + 1) // count) for at in range(count)]
