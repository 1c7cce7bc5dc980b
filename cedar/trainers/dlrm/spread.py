"""Plans which rank holds which piece of which table, which rows all ranks replicate, and which rows are in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from cedar.core.errors import CedarError
from cedar.trainers.common.group import Group
from cedar.trainers.dlrm.hot import NONE, Exchange, Frequency, best_load, choices, filled, in_memory, rows_to_replicate
from cedar.trainers.dlrm.options import FeatureOptions, Planner, Rule, Sharding
from cedar.trainers.dlrm.sharding import TablePiece, place, place_exactly, planned
from cedar.trainers.dlrm.tables import Table


@dataclass(frozen=True)
class ShardingRequest:
    """The inputs of a sharding plan; see ``DedupEmbeddings``."""

    sharding: Sharding | Mapping[str, Sharding]
    costs: Mapping[str, float] | None
    frequencies: Mapping[str, Frequency] | None
    planner: Planner
    memory: int
    fast: int
    slow_cost: float


class Spread:
    """A sharding plan, identical on all ranks.

    Attributes:
        places: the pieces of each table.
        shared: the replicated rows, by table.
        near: the rows of this rank's pieces that are in memory, by piece; None if all are.
        sent: bytes that all ranks send per step for tables with replicated rows.
        far: for each rank, the expected number of rows in its file that a step touches, estimated from sampled batches.
        notes: the choices, with reasons.

    Raises:
        CedarError: tables do not fit, or the rule does not support the plan.
    """

    def __init__(
        self, features: Sequence[FeatureOptions], widths: Mapping[str, int], rule: Rule | None, dtype: torch.dtype,
        group: Group, wanted: ShardingRequest,
    ) -> None:  # fmt: skip
        self.widths, self.rule, self.dtype, self.group, self.wanted = widths, rule, dtype, group, wanted
        self.notes: list[str] = []
        self.sent, self.far = 0.0, list[float]()
        self.rows = rows = {feature.home: feature.rows for feature in features}
        ranks, memory, fast = group.size, wanted.memory, wanted.fast
        known = wanted.costs or {name: count * widths[name] for name, count in rows.items()}
        self.each = {name: bytes_of_row(widths[name], rule, dtype) for name in rows}
        sizes = {name: count * self.each[name] for name, count in rows.items()}
        how = planned(rows, known, sizes, wanted.sharding, ranks, memory)
        if rule == "rowwise_adagrad" and (odd := [name for name, one in how.items() if one == "columns" and ranks > 1]):
            raise CedarError(
                f"rowwise_adagrad needs all columns of a row on one rank, but {odd[0]!r} is sharded by columns",
                fix="shard it by rows, or use the rule sgd or adam",
            )
        pieces = {name: _split_table(name, count, widths[name], how[name], ranks) for name, count in rows.items()}
        whole = {name: sizes[name] for name in rows if len(pieces[name]) == 1}
        cut = sum(-(-size // len(pieces[name])) for name, size in sizes.items() if name not in whole)  # bytes per rank
        if memory and cut > memory:
            raise CedarError(
                f"pieces of tables need {cut:,} bytes on each of {ranks} ranks, which have {memory:,}",
                done="nothing was allocated", fix="use more ranks, a larger tables.memory, or fewer rows",
            )  # fmt: skip
        self.frequencies = {name: (wanted.frequencies or {}).get(name, NONE) for name in rows}
        pooled = {feature.home for feature in features if not feature.single}  # cannot use replicas
        often = {name: self.frequencies[name] for name in rows if how[name] == "hot" and name not in pooled}
        room = sum(sizes.values())
        if memory:  # reserve space for unsplit tables
            room = memory - cut - sum(whole.values()) // ranks - max(whole.values(), default=0)
        self.shared = self._plan_replicas(often, fast or room) if ranks > 1 else {}
        copies = sum(len(ids) * self.each[name] for name, ids in self.shared.items())
        reported = {name: known[name] for name in whole}, whole, ranks, memory and memory - cut - copies
        owners = self._assign_tables(*reported, fast - copies if fast else 0)
        self.places = {
            name: [TablePiece(piece, columns, owners.get(name, at)) for at, (piece, columns) in enumerate(made)]
            for name, made in pieces.items()
        }
        self.near = self._plan_memory(fast - copies) if fast else None

    def pieces_of(self, rank: int) -> list[TablePiece]:
        """Return the pieces of a rank."""
        return [one for made in self.places.values() for one in made if one.rank == rank]

    def _plan_replicas(self, often: dict[str, Frequency], room: int) -> dict[str, torch.Tensor]:
        if often and self.rule is None:
            asked = self.wanted.sharding
            if "hot" in ([asked] if isinstance(asked, str) else asked.values()):
                raise CedarError("sharding 'hot' needs a fused rule", fix="set a rule, or shard by rows")
            return {}  # auto
        wide = torch.promote_types(self.dtype, torch.float32).itemsize
        prices = {name: Exchange(self.group.size, self.widths[name] * wide) for name in often}
        copied = rows_to_replicate(often, prices, self.each, room)
        for name, ids in copied.items():
            one, here = often[name], torch.isin(often[name].ids, ids)
            by_rows, by_copies = prices[name].by_rows(one), prices[name].by_copies(one)
            self.frequencies[name] = replace(one.where(~here), copied=ids)
            sent, alone = float(torch.where(here, by_copies, by_rows).sum()), float(by_rows.sum())
            self.sent += sent
            self.notes.append(
                f"{name}: {len(ids):,} of {self.rows[name]:,} rows on every rank ({_mb(len(ids) * self.each[name])}), "
                f"so ranks send {_mb(sent)} per step for it, instead of {_mb(alone)} with sharding by rows"
            )
        return {name: ids for name, ids in copied.items() if len(ids)}

    def _assign_tables(
        self, costs: dict[str, float], sizes: Mapping[str, int], ranks: int, memory: int, fast: int
    ) -> dict[str, int]:
        """Return the rank of each table. A table's cost depends on which of its rows are in memory, and so on which
        other tables its rank has. The initial costs assume that all ranks share one memory.
        """
        ways, load = None, None
        if fast:
            extra = {name: (self.wanted.slow_cost - 1) * self.widths[name] for name in self.rows}
            every = {
                n: choices(self.frequencies[n], self.rows[n], costs.get(n, 0.0), self.each[n], extra[n])
                for n in self.rows
            }
            counts = filled({name: one.touched for name, one in self.frequencies.items()}, self.each, ranks * fast)
            costs = {
                n: cost + extra[n] * self.frequencies[n].cold(counts[n], self.rows[n]) for n, cost in costs.items()
            }
            load = best_load(every, fast, {name: ranks for name in every if name not in costs})
            ways = {name: every[name] for name in costs}
        if self.wanted.planner == "greedy" or ranks == 1:
            return place(costs, sizes, ranks, memory, load)
        best = place_exactly(costs, sizes, ranks, memory, choices=ways, fast=fast)
        owners: dict[str, int] = self.group.tell(best)[0]  # ranks may differ after a timeout
        return owners

    def _plan_memory(self, room: int) -> dict[str, torch.Tensor]:
        mine: dict[str, torch.Tensor] = {}
        for rank in range(self.group.size):
            ones, rows, sizes = {}, {}, {}
            for owned in self.pieces_of(rank):
                piece, first = owned.table, owned.table.start[0]
                one = self.frequencies[piece.of or piece.name]
                here = (one.ids >= first) & (one.ids < first + piece.rows)
                ones[piece.name] = one.where(here, first, piece.rows / (piece.whole[0] or piece.rows))
                rows[piece.name], sizes[piece.name] = piece.rows, bytes_of_row(owned.width, self.rule, self.dtype)
            near = in_memory(ones, rows, sizes, room)
            touched = sum(one.cold(0, rows[name]) for name, one in ones.items())
            self.far.append(sum(one.cold(len(near[name]), rows[name]) for name, one in ones.items()))
            size = sum(len(ids) * sizes[name] for name, ids in near.items())
            self.notes.append(
                f"rank {rank}: {sum(map(len, near.values())):,} of {sum(rows.values()):,} rows in memory "
                f"({_mb(size)}), the others in a file; of the {touched:,.0f} rows that a step touches, "
                f"{1 - self.far[-1] / (touched or 1.0):.0%} are in memory, estimated from sampled batches"
            )
            mine = near if rank == self.group.rank else mine
        return mine


def widths_of(features: Sequence[FeatureOptions], width: int) -> dict[str, int]:
    """Return the width of each table by name: what its features specify, or ``width``.

    Raises:
        CedarError: features of one table specify different widths.
    """
    widths: dict[str, int] = {}
    for feature in features:
        own = feature.width or width
        if widths.setdefault(feature.home, own) != own:
            raise CedarError(
                f"table {feature.home!r} has widths {widths[feature.home]} and {own}",
                fix="give all features of a table one width",
            )
    return widths


def bytes_of_row(width: int, rule: Rule | None, dtype: torch.dtype) -> int:
    """Return the bytes of a table row with its optimizer state."""
    numbers = {"rowwise_adagrad": 1, "sgd": 0, "adam": 2 * width, None: 0}[rule]
    return width * dtype.itemsize + numbers * max(4, dtype.itemsize)


def _mb(size: float) -> str:
    return f"{size / 1e6:,.1f} MB"


def _split_table(name: str, rows: int, width: int, how: Sharding, ranks: int) -> list[tuple[Table, int]]:
    """Return the pieces of a table and their widths."""
    how = "rows" if how == "hot" else how
    count = min(ranks, rows if how == "rows" else width) if how in ("rows", "columns") else 1
    if count == 1:
        return [(Table(name, rows), width)]
    pieces = []
    for at in range(count):
        size = rows if how == "rows" else width
        start, stop = size * at // count, size * (at + 1) // count
        part, first, columns = (stop - start, (start, 0), width) if how == "rows" else (rows, (0, start), stop - start)
        pieces.append((Table(f"{name}[{how} {start}:{stop}]", part, name, first, (rows, width)), columns))
    return pieces
