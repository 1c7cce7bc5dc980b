"""Row frequencies, and the choice of rows to keep in memory (RecShard, arXiv 2201.10095) or on every rank (FlexShard,
arXiv 2301.02959).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, pairwise
from typing import Any

import torch

from cedar.trainers.common.group import cut
from cedar.trainers.dlrm.inputs import Inputs, read_batch, rows_of
from cedar.trainers.dlrm.options import FeatureOptions

STEPS = 100  # number of points on a frequency curve from which the solver may choose, as in RecShard


_ROWS = torch.zeros(0, dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class Frequency:
    """How often sampled batches look up each row of a table, most frequent first.

    Rows that no sampled batch contains come last, by ascending id, because vocabularies assign low ids to frequent
    values. To estimate the probability that another step touches a row, each batch is left out in turn (as in
    Good-Turing estimation), and the number of other batches that contain the row is used.
    """

    ids: torch.Tensor  # int64 ``[n]``
    touched: torch.Tensor  # float64 ``[n]``: probability that another step touches the row
    asking: torch.Tensor  # float64 ``[n]``: mean number of ranks per step that look the row up
    lookups: torch.Tensor  # float64 ``[n]``: mean number of lookups per step, over all ranks
    unseen: float = 0.0  # expected number of rows in no sampled batch that a step touches
    copied: torch.Tensor = _ROWS  # int64: rows that are replicated on every rank

    @classmethod
    def of(cls, steps: Iterable[Sequence[torch.Tensor]]) -> Frequency:
        """Compute frequencies from the int64 ids that each rank looks up in one or more steps.

        Examples:
            >>> first, second = torch.tensor([7, 7]), torch.tensor([7, 3])
            >>> frequency = Frequency.of([[first, second], [first[:1], first[:0]]])
            >>> frequency.ids.tolist(), frequency.asking.tolist(), frequency.lookups.tolist(), frequency.unseen
            ([7, 3], [1.5, 0.5], [2.0, 0.5], 0.5)
        """
        return cls.joined([counted(step) for step in steps])

    @classmethod
    def joined(cls, seen: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]) -> Frequency:
        """Compute frequencies from the ``counted`` results of several steps."""
        count, rows = len(seen), torch.unique(torch.cat([each[0] for each in seen]))
        batches, asking, lookups = (torch.zeros(len(rows), dtype=torch.int64) for _ in range(3))
        for ids, many, ranks in seen:
            at = torch.searchsorted(rows, ids)
            batches[at] += 1
            asking[at] += ranks
            lookups[at] += many
        order = torch.argsort(lookups, descending=True, stable=True)
        order = order[torch.argsort(batches[order], descending=True, stable=True)]
        numbers = torch.bincount(batches, minlength=count + 1).double()  # rows by number of batches that contain them
        chances = [0.0]
        for n in range(1, count):
            present = (n + 1) * numbers[n + 1]
            chances.append(max(chances[-1], float(present / (present + (count - n) * numbers[n]).clamp(min=1))))
        known = torch.tensor(chances if count > 1 else [1.0], dtype=torch.float64)  # by number of other batches
        place = batches[order] * (count - 1) / count  # scaled from ``count`` batches to ``count - 1`` others
        touched = torch.lerp(known[place.long()], known[place.ceil().long()], place.double().frac())
        asking, lookups = asking[order].double() / count, lookups[order].double() / count
        return cls(rows[order], touched, asking, lookups, float(numbers[1]) / count * (count > 1))

    def where(self, kept: torch.Tensor, first: int = 0, share: float = 1.0) -> Frequency:
        """Keep only the rows of a mask, with ids relative to ``first``, and a share of the unseen rows."""
        ids, unseen = self.ids[kept] - first, self.unseen * share
        return Frequency(ids, self.touched[kept], self.asking[kept], self.lookups[kept], unseen, self.copied - first)

    def cold(self, count: int, rows: int) -> float:
        """Return the expected number of rows that a step touches, excluding the ``count`` most frequent rows."""
        unseen = self.others(rows)
        share = min(1.0, max(0.0, (unseen + len(self.ids) - count) / max(1, unseen)))
        return float(self.touched[count:].sum()) + self.unseen * share

    def others(self, rows: int) -> int:
        """Return how many of a table's rows no batch contains, not counting replicated rows."""
        return rows - len(self.ids) - int(((self.copied >= 0) & (self.copied < rows)).sum())

    def hottest(self, count: int, rows: int) -> torch.Tensor:
        """Return the ids of the ``count`` most frequent rows of a table."""
        if count <= len(self.ids):
            return self.ids[:count]
        others = torch.ones(rows, dtype=torch.bool)
        others[self.ids] = False
        others[self.copied[(self.copied >= 0) & (self.copied < rows)]] = False
        return torch.cat([self.ids, others.nonzero()[: count - len(self.ids), 0]])


def counted(step: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the rows of a step in ascending order, with each row's number of lookups and of ranks that look it up."""
    rows, lookups = torch.unique(torch.cat(list(step)).cpu(), return_counts=True)
    return rows, lookups, torch.unique(torch.cat([torch.unique(ids) for ids in step]).cpu(), return_counts=True)[1]


NONE = Frequency(_ROWS, _ROWS.double(), _ROWS.double(), _ROWS.double())


def frequencies(
    batches: Iterable[Mapping[str, Any] | Inputs], features: Sequence[FeatureOptions], ranks: int = 1
) -> dict[str, Frequency]:
    """Compute row frequencies of each table from global batches of a loader with ``format="torch"``. With a few dozen
    batches, estimates of which rows other batches touch are accurate to within a few percent.

    Args:
        ranks: number of ranks that share each batch.

    Examples:
        >>> found = frequencies([{"item": torch.tensor([4, 2, 4])}], [FeatureOptions("item", 9)])
        >>> found["item"].ids.tolist(), found["item"].lookups.tolist()
        ([4, 2], [2.0, 1.0])
    """
    at = {f.home: [n for n, other in enumerate(features) if other.home == f.home] for f in features}
    seen: dict[str, list[Any]] = {name: [] for name in at}
    for batch in batches:
        inputs = batch if isinstance(batch, Inputs) else read_batch(batch, features, [], None)
        parts = [rows_of(inputs, rows) for rows in cut(len(inputs), ranks)] if ranks > 1 else [inputs]
        for name, places in at.items():
            seen[name].append(counted([torch.cat([part.features[n].bags.ids for n in places]) for part in parts]))
    return {name: Frequency.joined(steps) for name, steps in seen.items()}


def filled(worth: Mapping[str, torch.Tensor], sizes: Mapping[str, int], room: int) -> dict[str, int]:
    """Return how many rows of each table fit in ``room``, if rows with the highest value per byte are chosen first.

    Rows without value are not chosen. The result is optimal except for the first row that does not fit.

    Args:
        worth: for each table, value per byte of its rows in descending order, float64 ``[n]``.
        sizes: bytes of a row, by table.
        room: available bytes.

    Examples:
        >>> filled({"a": torch.tensor([9.0, 3.0]), "b": torch.tensor([5.0, 0.0])}, {"a": 4, "b": 2}, 9)
        {'a': 1, 'b': 1}
    """
    if not worth:
        return {}
    every = torch.cat(list(worth.values()))
    of = torch.repeat_interleave(torch.arange(len(worth)), torch.tensor([len(each) for each in worth.values()]))
    order = torch.argsort(every, descending=True, stable=True)
    order = of[order[every[order] > 0]]
    taken = order[torch.tensor([sizes[name] for name in worth])[order].cumsum(0) <= room]
    return dict(zip(worth, torch.bincount(taken, minlength=len(worth)).tolist(), strict=True))


def in_memory(
    frequency: Mapping[str, Frequency], rows: Mapping[str, int], sizes: Mapping[str, int], room: int
) -> dict[str, torch.Tensor]:
    """Return the rows of each table or piece to keep in memory, int64.

    Args:
        frequency: lookup frequencies by table.
        rows: number of rows by table.
        sizes: bytes of a row with its optimizer state, by table.
        room: available bytes.
    """
    counts = filled({name: one.touched for name, one in frequency.items()}, sizes, room)
    left = room - sum(counts[name] * sizes[name] for name in frequency)
    chance = {name: one.unseen / max(1, one.others(rows[name])) for name, one in frequency.items()}
    for name in sorted(frequency, key=lambda name: -chance[name]):
        if counts[name] == len(frequency[name].ids):
            more = min(frequency[name].others(rows[name]), left // sizes[name])
            counts[name], left = counts[name] + more, left - more * sizes[name]
    return {name: one.hottest(counts[name], rows[name]) for name, one in frequency.items()}


def choices(one: Frequency, rows: int, cost: float, size: int, slow: float) -> list[tuple[float, int]]:
    """Return options (cost, bytes in memory) for a table, at points that divide its row touches into equal shares."""
    total = one.touched.cumsum(0)
    marks = torch.linspace(0, float(total[-1]) if len(total) else 0.0, STEPS + 1, dtype=torch.float64)
    counts = sorted({0, rows, *torch.searchsorted(total, marks).clamp(max=len(total)).tolist(), len(total)})
    return [(cost + slow * one.cold(count, rows), count * size) for count in counts]


def best_load(
    ways: Mapping[str, Sequence[tuple[float, int]]], room: float, cut: Mapping[str, int]
) -> Callable[[frozenset[str]], float]:
    """Return a function that maps a set of tables to the cost on one rank, with the best of their rows in memory.

    Args:
        ways: the ``choices`` of all tables.
        room: bytes of memory.
        cut: for tables that are split over ranks, the number of ranks; every rank has a part of these tables.

    Examples:
        >>> best_load({"a": [(9.0, 0), (3.0, 2), (2.0, 4)]}, 3, {})(frozenset("a"))
        2.5
    """
    steps = {
        name: [
            ((a - b) / (n - m), (n - m) / cut.get(name, 1), (a - b) / cut.get(name, 1))
            for (a, m), (b, n) in pairwise(each)
        ]
        for name, each in ways.items()
    }

    @cache
    def load(names: frozenset[str]) -> float:
        total, left = sum(ways[name][0][0] for name in sorted(names)), room
        for _, size, gain in sorted(chain.from_iterable(steps[name] for name in (*names, *cut)), reverse=True):
            part = min(1.0, left / size)
            if part <= 0:
                break
            total, left = total - part * gain, left - part * size
        return total

    return load


@dataclass(frozen=True)
class Exchange:
    """Bytes that all ranks send per step for a table's rows: ids, rows and gradients.

    Args:
        ranks: number of ranks.
        row: bytes of a row or of its gradient, as sent.
        id: bytes of an id.
    """

    ranks: int
    row: int
    id: int = 4

    def by_rows(self, one: Frequency) -> torch.Tensor:
        """Return the bytes if each row is on one rank. Each remote lookup sends the id, the row and its gradient."""
        return one.lookups * (self.id + 2 * self.row) * (self.ranks - 1) / self.ranks

    def by_copies(self, one: Frequency) -> torch.Tensor:
        """Return the bytes if rows are on all ranks. Gradients are sent to the rank that sums them, and sums to all."""
        return (one.asking * (self.ranks - 1) / self.ranks + one.touched * (self.ranks - 1)) * (self.id + self.row)


def rows_to_replicate(
    frequency: Mapping[str, Frequency], prices: Mapping[str, Exchange], sizes: Mapping[str, int], room: int
) -> dict[str, torch.Tensor]:
    """Return the rows of each table to replicate, in order of bytes saved per byte of memory, as many as fit."""
    saved = {name: prices[name].by_rows(one) - prices[name].by_copies(one) for name, one in frequency.items()}
    order = {name: torch.argsort(each, descending=True, stable=True) for name, each in saved.items()}
    counts = filled({name: saved[name][order[name]] / sizes[name] for name in frequency}, sizes, room)
    return {name: one.ids[order[name][: counts[name]]] for name, one in frequency.items()}
