"""Which rank holds which table, or piece of one: greedy, from what batches look up (as RecShard, arXiv 2201.10095).

RecShard solves a mixed-integer program; here the costliest table goes to the least loaded rank, and moves and swaps
follow while they lower the highest load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from cedar.errors import CedarError
from cedar.trainers.dlrm.inputs import Feature, Inputs
from cedar.trainers.dlrm.options import FeatureOptions

_HOT = 1000
Sharding: TypeAlias = Literal["auto", "tables", "rows", "columns"]


@dataclass(frozen=True)
class FeatureStatistics:
    """What some batches look up of one feature.

    Args:
        column: of the feature.
        table: that it looks up.
        coverage: share of rows whose list is not empty.
        pooling: ids of such a row, on average.
        factor: rows per unique row; of lists that slide, their ids over those that are looked up.
        lookups: ids of the unique rows of a batch.
        distinct: rows of the table that a batch touches: their number falls as frequencies are skewed.
        hot: share of lookups that go to the 1,000 most frequent ids.
    """

    column: str
    table: str
    coverage: float
    pooling: float
    factor: float
    lookups: float
    distinct: float
    hot: float

    def cost(self, width: int) -> float:
        """Bytes moved in a step: rows read; for those touched, a gradient, and weights read and written."""
        return 4.0 * width * (self.lookups + 3 * self.distinct)


def look(batches: Sequence[Inputs], features: Sequence[FeatureOptions]) -> list[FeatureStatistics]:
    """The statistics of each feature over some batches, at least one."""
    found = []
    for at, option in enumerate(features):
        parts = [batch.features[at] for batch in batches]
        rows = covered = ids = 0
        for part in parts:
            lengths = part.lengths
            lengths = lengths if part.by is None else lengths[part.by.index]
            rows, covered, ids = rows + len(lengths), covered + int((lengths > 0).sum()), ids + int(lengths.sum())
        held = torch.cat([part.bags.ids for part in parts])
        counts = torch.unique(held, return_counts=True)[1].sort(descending=True).values
        distinct = sum(len(torch.unique(part.bags.ids)) for part in parts) / len(parts)
        found.append(
            FeatureStatistics(
                option.column, option.home,
                coverage=covered / max(1, rows), pooling=ids / max(1, covered), factor=_factor(parts, rows, ids),
                lookups=len(held) / len(parts), distinct=distinct,
                hot=float(counts[:_HOT].sum()) / max(1, len(held)),
            )
        )  # fmt: skip
    return found


def _factor(parts: Sequence[Feature], rows: int, ids: int) -> float:
    if any(part.windows is not None for part in parts):
        return ids / max(1, sum(len(part.bags) for part in parts))
    return rows / max(1, sum(len(part.bags) for part in parts))


def planned(
    rows: Mapping[str, int], costs: Mapping[str, float], sizes: Mapping[str, int],
    how: Sharding | Mapping[str, Sharding], ranks: int, memory: int = 0,
) -> dict[str, Sharding]:  # fmt: skip
    """How each table is cut; ``auto``: by rows where it costs more than a rank's share, or no rank has room for it.

    Example:
        >>> planned({"a": 9, "b": 2}, {"a": 8.0, "b": 1.0}, {"a": 90, "b": 20}, "auto", 2)
        {'a': 'rows', 'b': 'tables'}
    """
    chosen = {name: how if isinstance(how, str) else how.get(name, "tables") for name in rows}
    share = sum(costs[name] for name in rows) / ranks
    large = {name for name in rows if costs[name] > share or (memory and sizes[name] > memory)}
    return {name: one if one != "auto" else "rows" if name in large else "tables" for name, one in chosen.items()}


def place(costs: Mapping[str, float], sizes: Mapping[str, int], ranks: int, memory: int = 0) -> dict[str, int]:
    """The rank of each table.

    Args:
        costs: of a step, by table.
        sizes: bytes, by table.
        ranks: how many.
        memory: bytes that a rank may hold; 0 for no limit.

    Raises:
        CedarError: they do not fit.

    Example:
        >>> place({"a": 5.0, "b": 4.0, "c": 3.0, "d": 2.0}, dict.fromkeys("abcd", 1), 2)
        {'a': 0, 'b': 1, 'c': 1, 'd': 0}
    """
    if memory and ranks > 1:  # what is largest may have one place only, so space comes before load
        order = sorted(costs, key=lambda name: (-sizes[name] * (2 * sizes[name] > memory), -costs[name], name))
    else:
        order = sorted(costs, key=lambda name: (-costs[name], name))
    loads, held = [0.0] * ranks, [0] * ranks
    found: dict[str, int] = {}
    for name in order:
        fits = [rank for rank in range(ranks) if not memory or held[rank] + sizes[name] <= memory]
        if not fits:
            raise CedarError(
                f"table {name!r} of {sizes[name]:,} bytes has no room: {ranks} rank(s) of {memory:,} bytes hold "
                f"{sum(held):,} of {sum(sizes.values()):,} bytes",
                done="nothing was allocated",
                fix="use more ranks, a larger tables.memory, or fewer rows",
            )
        best = min(fits, key=lambda rank: (loads[rank], held[rank], rank))
        found[name] = best
        loads[best] += costs[name]
        held[best] += sizes[name]
    while _improved(found, costs, sizes, loads, held, memory):
        pass
    return {name: found[name] for name in costs}


def _improved(
    found: dict[str, int], costs: Mapping[str, float], sizes: Mapping[str, int], loads: list[float], held: list[int],
    memory: int,
) -> bool:  # fmt: skip
    """Move a table away from the most loaded rank, or swap one with it, if the higher of both loads falls."""
    top = max(range(len(loads)), key=lambda rank: (loads[rank], -rank))
    for name in [name for name, rank in found.items() if rank == top]:
        for other in [None, *(other for other, rank in found.items() if rank != top)]:
            targets = [rank for rank in range(len(loads)) if rank != top] if other is None else [found[other]]
            for rank in targets:
                gain = costs[name] - (costs[other] if other else 0.0)
                grow = sizes[name] - (sizes[other] if other else 0)
                fits = not memory or (held[rank] + grow <= memory and held[top] - grow <= memory)
                if gain > 0 and fits and loads[rank] + gain < loads[top] - 1e-9 * loads[top]:
                    found[name] = rank
                    if other:
                        found[other] = top
                    loads[top], loads[rank] = loads[top] - gain, loads[rank] + gain
                    held[top], held[rank] = held[top] - grow, held[rank] + grow
                    return True
    return False
