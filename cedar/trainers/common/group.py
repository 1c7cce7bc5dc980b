"""The ranks that train together: the few collectives that are used, with their bytes and seconds per phase.

One process without torch.distributed is a group of one: the same calls, nothing sent.
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

_all: weakref.WeakSet[Group] = weakref.WeakSet()


def release_idle() -> None:
    """Leave the process groups to torch.distributed, which ends them with the last reference: of threads that are
    still at work when Python ends, one that looks for it ends the process.
    """
    for group in list(_all):
        group.ranks = group._side = None


@dataclass
class Meter:
    """What went from this rank to others, and how long each phase took, since the last ``take``."""

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
        """Bytes and seconds by phase; counting starts again."""
        counted = dict(self.sent), dict(self.seconds)
        self.sent.clear()
        self.seconds.clear()
        return counted


class Group:
    """This process among those that train together. ``ranks``: a torch process group; None for all of torch.distributed
    if that is initialized, else this process alone; ``side``: another process group of the same ranks on the CPU, for
    what threads send next to the training; None: made when it is needed, for which ``ranks`` must be all of
    torch.distributed.
    """

    def __init__(self, ranks: Any = None, side: Any = None) -> None:
        if ranks is None and dist.is_available() and dist.is_initialized():
            ranks = dist.group.WORLD
        self.ranks = ranks
        self.rank: int = 0 if ranks is None else dist.get_rank(ranks)
        self.size: int = 1 if ranks is None else dist.get_world_size(ranks)
        self.meter = Meter()
        self._side = side
        _all.add(self)

    def __deepcopy__(self, memo: object) -> Group:
        """This one: a copy of a model is of the same ranks, and process groups cannot be copied."""
        return self

    @property
    def side(self) -> Any:
        """The process group for threads; None if there is one rank. All ranks must ask for it at the same place."""
        if self.size == 1:
            return None
        if self._side is None:
            self._side = dist.new_group(dist.get_process_group_ranks(self.ranks), backend="gloo")
        return self._side

    def gather(self, row: torch.Tensor, phase: str) -> torch.Tensor:
        """The row of every rank, ``[ranks, len(row)]``."""
        if self.size == 1:
            return row[None]
        rows = torch.empty((self.size, *row.shape), dtype=row.dtype, device=row.device)
        with self._talking(phase):
            dist.all_gather(list(rows.unbind()), row.contiguous(), group=self.ranks)
        self.meter.sent[phase] += (self.size - 1) * row.nbytes
        return rows

    def tell(self, value: Any) -> list[Any]:
        """A value of JSON from every rank, on all of them; by the group for threads."""
        if self.size == 1:
            return [value]
        own = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        with self._talking("state"):
            lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
            dist.all_gather(lengths, torch.tensor([len(own)]), group=self.side)
            most = max(map(int, lengths))
            strings = [torch.empty(most, dtype=torch.uint8) for _ in range(self.size)]
            dist.all_gather(strings, torch.nn.functional.pad(own, (0, most - len(own))), group=self.side)
        return [json.loads(bytes(text[: int(n)].numpy())) for text, n in zip(strings, lengths, strict=True)]

    def add(self, values: torch.Tensor, phase: str) -> torch.Tensor:
        """The sum over ranks, the same bits on all of them: each number is added up in the order of ranks, from rank 0
        on, in the dtype of ``values``. That is promised, so that a run repeats on as many ranks; a ring's own sum
        starts at another rank for each part.

        Each rank adds up one part for all, so that it sends 2 (N - 1) / N times the values; fewer of them than ranks
        are sent to every worker.
        """
        if values.numel() < self.size:
            return _in_order_of_ranks(self.gather(values, phase))
        parts = [len(part) for part in cut(values.numel(), self.size)]
        own = [parts[self.rank]] * self.size
        rows = self.exchange(values.flatten(), parts, own, phase)
        total = _in_order_of_ranks(rows.view(self.size, -1))
        return self.exchange(total.repeat(self.size), own, parts, phase).view(values.shape)

    def agree(self, values: Mapping[str, object], fix: str, device: torch.device | None = None) -> None:
        """Compare what all ranks must hold alike.

        Args:
            values: the same keys on all ranks; values are compared by their ``repr``.
            fix: what to do where they differ.
            device: of the tensors that this group exchanges.
        """
        own = torch.tensor([digest(value) for value in values.values()], device=device)
        table = self.gather(own, "agreement").cpu()
        if odd := odd_ranks(table.tolist()):
            names = [name for name, column in zip(values, table.T.tolist(), strict=True) if odd_ranks(column)]
            raise CedarError(
                f"ranks disagree: {odd} differ from rank 0 in {', '.join(names)}", done="nothing was trained", fix=fix
            )

    def exchange(self, rows: torch.Tensor, send: Sequence[int], receive: Sequence[int], phase: str) -> torch.Tensor:
        """Rows for each rank out, rows from each rank in, both in the order of ranks.

        Args:
            rows: ``[sum(send), ...]``.
            send: rows that go to each rank.
            receive: rows that come from each rank.
            phase: what the bytes are counted under.
        """
        if self.size == 1:
            return rows
        received = torch.empty((sum(receive), *rows.shape[1:]), dtype=rows.dtype, device=rows.device)
        with self._talking(phase):
            dist.all_to_all_single(received, rows.contiguous(), list(receive), list(send), group=self.ranks)
        away = sum(send) - send[self.rank]
        self.meter.sent[phase] += away * rows[:1].numel() * rows.element_size()
        return received

    @contextmanager
    def _talking(self, phase: str) -> Iterator[None]:
        with self.meter.timing(phase):
            try:
                yield
            except RuntimeError as error:
                raise CedarError(
                    f"rank {self.rank} of {self.size} lost the others while it exchanged {phase}: {error}",
                    done="this rank stopped; what the last checkpoint holds is safe",
                    fix="start again with --resume, on as many ranks or on fewer",
                ) from error


def _in_order_of_ranks(rows: torch.Tensor) -> torch.Tensor:
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total


def exchange_rows(
    rows: torch.Tensor, group: Group, send: Sequence[int], receive: Sequence[int], phases: tuple[str, str], *,
    anchor: torch.Tensor | None = None, scale: float = 1.0,
) -> torch.Tensor:  # fmt: skip
    """``group.exchange``, whose gradient goes the same way back.

    Args:
        phases: what the bytes of rows are counted under, and those of gradients.
        anchor: a tensor that wants a gradient, so that a rank takes part in the way back whose rows want none.
        scale: what gradients are multiplied with.
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


def odd_ranks(values: Sequence[object]) -> list[int]:
    """The ranks whose value is not that of rank 0.

    Examples:
        >>> odd_ranks([3, 3, 4])
        [2]
    """
    return [rank for rank, value in enumerate(values) if value != values[0]]


def cut(size: int, count: int) -> list[range]:
    """``count`` runs of ``size``, whose lengths differ by one at most.

    Examples:
        >>> cut(5, 2)
        [range(0, 2), range(2, 5)]
    """
    return [range(size * at // count, size * (at + 1) // count) for at in range(count)]
