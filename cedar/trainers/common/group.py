"""Groups of ranks that train together, and their collectives, which count bytes and seconds per phase.

Without torch.distributed, a process is a group of one rank, whose collectives send nothing.
"""

from __future__ import annotations

import json
import time
import weakref
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from cedar.core.errors import CedarError
from cedar.trainers.common.compute import digest

_groups: weakref.WeakSet[Group] = weakref.WeakSet()


def release_process_groups() -> None:
    """Drop all references to process groups, so that torch.distributed destroys them. A thread of a process group that
    still runs while Python exits can crash the process.
    """
    for group in list(_groups):
        group.ranks = group._side = None


@dataclass
class Meter:
    """Counts, per phase, bytes that this rank sent to other ranks and seconds, since the last ``take``."""

    sent: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @contextmanager
    def timing(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - began

    def take(self) -> tuple[dict[str, int], dict[str, float]]:
        """Return bytes and seconds by phase, and reset both."""
        counted = dict(self.sent), dict(self.seconds)
        self.sent.clear()
        self.seconds.clear()
        return counted


class Group:
    """The ranks that train together. ``ranks``: a torch process group; None means all of torch.distributed if
    initialized, else this process as a single rank. ``side``: a CPU process group of the same ranks, for communication
    in threads; if None, it is created on first use, for which ``ranks`` must be all of torch.distributed.
    """

    def __init__(self, ranks: Any = None, side: Any = None) -> None:
        if ranks is None and dist.is_available() and dist.is_initialized():
            ranks = dist.group.WORLD
        self.ranks = ranks
        self.rank: int = 0 if ranks is None else dist.get_rank(ranks)
        self.size: int = 1 if ranks is None else dist.get_world_size(ranks)
        self.meter = Meter()
        self._side = side
        _groups.add(self)

    def __deepcopy__(self, memo: object) -> Group:
        """Return this object, since a copied model has the same ranks, and process groups cannot be copied."""
        return self

    @property
    def side(self) -> Any:
        """The process group for threads; None for a single rank. All ranks must first access it at the same point."""
        if self.size == 1:
            return None
        if self._side is None:
            self._side = dist.new_group(dist.get_process_group_ranks(self.ranks), backend="gloo")
        return self._side

    def gather(self, row: torch.Tensor, phase: str) -> torch.Tensor:
        """Return the rows of all ranks, ``[ranks, len(row)]``."""
        if self.size == 1:
            return row[None]
        rows = torch.empty((self.size, *row.shape), dtype=row.dtype, device=row.device)
        with self._communicating(phase):
            dist.all_gather(list(rows.unbind()), row.contiguous(), group=self.ranks)
        self.meter.sent[phase] += (self.size - 1) * row.nbytes
        return rows

    def tell(self, value: Any) -> list[Any]:
        """Exchange a JSON value over the process group for threads, and return the values of all ranks."""
        if self.size == 1:
            return [value]
        own = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        with self._communicating("state"):
            lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
            dist.all_gather(lengths, torch.tensor([len(own)]), group=self.side)
            most = max(map(int, lengths))
            strings = [torch.empty(most, dtype=torch.uint8) for _ in range(self.size)]
            dist.all_gather(strings, torch.nn.functional.pad(own, (0, most - len(own))), group=self.side)
        return [json.loads(bytes(text[: int(n)].numpy())) for text, n in zip(strings, lengths, strict=True)]

    def add(self, values: torch.Tensor, phase: str) -> torch.Tensor:
        """Return the sum over ranks, which is bitwise identical on all ranks.

        Values are added in the order of ranks, from rank 0, in the dtype of ``values``, so runs on the same number of
        ranks are reproducible. (A ring all-reduce would start each part at another rank.) Each rank sums one part for
        all ranks, and so sends 2 (N - 1) / N times the bytes of ``values``. If there are fewer values than ranks, every
        rank gathers all values.
        """
        if values.numel() < self.size:
            return _sum_in_rank_order(self.gather(values, phase))
        parts = [len(part) for part in cut(values.numel(), self.size)]
        own = [parts[self.rank]] * self.size
        rows = self.exchange(values.flatten(), parts, own, phase)
        total = _sum_in_rank_order(rows.view(self.size, -1))
        return self.exchange(total.repeat(self.size), own, parts, phase).view(values.shape)

    def agree(self, values: Mapping[str, object], fix: str, device: torch.device | None = None) -> None:
        """Raise unless all ranks have the same values.

        Args:
            values: the values by name, with the same names on all ranks; they are compared by a hash of ``repr``.
            fix: advice for the user if values differ.
            device: device of the tensors that this group exchanges.
        """
        own = torch.tensor([digest(value) for value in values.values()], device=device)
        table = self.gather(own, "agreement").cpu()
        if odd := differing_ranks(table.tolist()):
            names = [name for name, column in zip(values, table.T.tolist(), strict=True) if differing_ranks(column)]
            raise CedarError(
                f"ranks disagree: {odd} differ from rank 0 in {', '.join(names)}", done="nothing was trained", fix=fix
            )

    def exchange(self, rows: torch.Tensor, send: Sequence[int], receive: Sequence[int], phase: str) -> torch.Tensor:
        """Send rows to each rank and receive rows from each rank, both in the order of ranks.

        Args:
            rows: ``[sum(send), ...]``.
            send: number of rows for each rank.
            receive: number of rows from each rank.
            phase: the phase under which bytes are counted.
        """
        if self.size == 1:
            return rows
        received = torch.empty((sum(receive), *rows.shape[1:]), dtype=rows.dtype, device=rows.device)
        with self._communicating(phase):
            dist.all_to_all_single(received, rows.contiguous(), list(receive), list(send), group=self.ranks)
        away = sum(send) - send[self.rank]
        self.meter.sent[phase] += away * rows[:1].numel() * rows.element_size()
        return received

    @contextmanager
    def _communicating(self, phase: str) -> Iterator[None]:
        with self.meter.timing(phase):
            try:
                yield
            except RuntimeError as error:
                raise CedarError(
                    f"rank {self.rank} of {self.size} lost the connection to other ranks during {phase}: {error}",
                    done="this rank stopped; what the last checkpoint holds is safe",
                    fix="restart with --resume, on the same number of ranks or on fewer",
                ) from error


def _sum_in_rank_order(rows: torch.Tensor) -> torch.Tensor:
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total


def exchange_rows(
    rows: torch.Tensor, group: Group, send: Sequence[int], receive: Sequence[int], phases: tuple[str, str], *,
    anchor: torch.Tensor | None = None, scale: float = 1.0,
) -> torch.Tensor:  # fmt: skip
    """Call ``group.exchange`` with autograd: the backward pass sends each row's gradient back to the row's sender.

    Args:
        phases: the phases under which bytes of rows and of gradients are counted.
        anchor: a tensor that requires a gradient, so that this rank joins the backward pass even if its rows do not.
        scale: factor of the gradients.
    """
    received: torch.Tensor = _Exchange.apply(anchor, rows, group, send, receive, phases, scale)  # type: ignore[no-untyped-call]
    return received


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, _anchor: Any, rows: torch.Tensor, group: Group, *how: Any) -> torch.Tensor:
        ctx.group, (ctx.send, ctx.receive, ctx.phases, ctx.scale) = group, how
        return group.exchange(rows, ctx.send, ctx.receive, ctx.phases[0])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        gradients = ctx.group.exchange(grads[0], ctx.receive, ctx.send, ctx.phases[1])
        return None, gradients if ctx.scale == 1.0 else gradients * ctx.scale, None, None, None, None, None


def differing_ranks(values: Sequence[object]) -> list[int]:
    """Return the ranks whose value differs from rank 0's.

    Examples:
        >>> differing_ranks([3, 3, 4])
        [2]
    """
    return [rank for rank, value in enumerate(values) if value != values[0]]


def cut(size: int, count: int) -> list[range]:
    """Split ``range(size)`` into ``count`` consecutive ranges whose lengths differ by at most one.

    Examples:
        >>> cut(5, 2)
        [range(0, 2), range(2, 5)]
    """
    return [range(size * at // count, size * (at + 1) // count) for at in range(count)]
