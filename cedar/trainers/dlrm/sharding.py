"""Sharding of tables over ranks: assigning tables or pieces to ranks, and exchanging ids and summed rows (RecD's O5).

The greedy planner assigns the most expensive table to the least loaded rank, then moves and swaps tables while that
lowers the highest load. The other planner solves a mixed-integer program, as in RecShard (arXiv 2201.10095). A piece is
a range of a table's rows, a range of its columns, or the whole table. Ranks request only ids that are in a piece. Sums
of row pieces are added in order; column pieces are concatenated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.nn import functional

from cedar.core.errors import CedarError
from cedar.trainers.common.group import Group, exchange_rows
from cedar.trainers.dlrm.inputs import Inputs
from cedar.trainers.dlrm.options import FeatureOptions, Sharding
from cedar.trainers.dlrm.tables import Bags, Table, Tables

if TYPE_CHECKING:
    from cedar.trainers.dlrm.replicas import Replicas

Load: TypeAlias = Callable[[frozenset[str]], float]

_ID_COST = 7.0  # processing an id takes as long as processing this many values of touched rows


@dataclass(frozen=True)
class FeatureStatistics:
    """Lookup statistics of a feature over sampled batches."""

    table: str
    lookups: float  # mean number of ids per batch, counting deduplicated rows once
    distinct: float  # mean number of distinct table rows per batch; lower if frequencies are skewed

    def cost(self, width: int) -> float:
        """Return the cost of a step, in values of touched rows. Looking up, sorting and summing an id costs as much as
        a few values, at any row width (measured by ``python -m benchmarks.recommendation_training --only costs``).
        """
        return _ID_COST * self.lookups + width * self.distinct


def look(batches: Sequence[Inputs], features: Sequence[FeatureOptions]) -> list[FeatureStatistics]:
    """Return the statistics of each feature over one or more batches."""
    statistics = []
    for at, option in enumerate(features):
        by_batch = [batch.features[at].bags.ids for batch in batches]
        distinct = sum(len(torch.unique(ids)) for ids in by_batch) / len(by_batch)
        statistics.append(FeatureStatistics(option.home, sum(map(len, by_batch)) / len(by_batch), distinct))
    return statistics


def planned(
    rows: Mapping[str, int], costs: Mapping[str, float], sizes: Mapping[str, int],
    how: Sharding | Mapping[str, Sharding], ranks: int, memory: int = 0,
) -> dict[str, Sharding]:  # fmt: skip
    """Return the sharding of each table. ``auto`` becomes ``hot`` for a table that costs more than a rank's share or
    does not fit on a rank, else ``tables``.

    Examples:
        >>> planned({"a": 9, "b": 2}, {"a": 8.0, "b": 1.0}, {"a": 90, "b": 20}, "auto", 2)
        {'a': 'hot', 'b': 'tables'}
    """
    chosen = {name: how if isinstance(how, str) else how.get(name, "tables") for name in rows}
    share = sum(costs[name] for name in rows) / ranks
    large = {name for name in rows if costs[name] > share or (memory and sizes[name] > memory)}
    return {name: one if one != "auto" else "hot" if name in large else "tables" for name, one in chosen.items()}


def place(
    costs: Mapping[str, float], sizes: Mapping[str, int], ranks: int, memory: int = 0,
    load: Load | None = None,
) -> dict[str, int]:  # fmt: skip
    """Assign tables to ranks greedily, and improve the assignment by moves and swaps.

    Args:
        costs: cost of a step, by table.
        sizes: bytes, by table.
        ranks: number of ranks.
        memory: bytes that a rank may hold; 0 for no limit.
        load: cost of a set of tables on one rank, if it is not the sum of their costs.

    Examples:
        >>> place({"a": 5.0, "b": 4.0, "c": 3.0, "d": 2.0}, dict.fromkeys("abcd", 1), 2)
        {'a': 0, 'b': 1, 'c': 1, 'd': 0}
    """
    if memory and ranks > 1:  # the largest tables may fit on one rank only, so place them first
        order = sorted(costs, key=lambda name: (-sizes[name] * (2 * sizes[name] > memory), -costs[name], name))
    else:
        order = sorted(costs, key=lambda name: (-costs[name], name))
    loads, used = [0.0] * ranks, [0] * ranks
    owners: dict[str, int] = {}
    for name in order:
        fits = [rank for rank in range(ranks) if not memory or used[rank] + sizes[name] <= memory]
        if not fits:
            raise CedarError(
                f"table {name!r} of {sizes[name]:,} bytes does not fit: {ranks} rank(s) of {memory:,} bytes hold "
                f"{sum(used):,} of {sum(sizes.values()):,} bytes",
                done="nothing was allocated",
                fix="use more ranks, a larger tables.memory, or fewer rows",
            )
        best = min(fits, key=lambda rank: (loads[rank], used[rank], rank))
        owners[name] = best
        loads[best] += costs[name]
        used[best] += sizes[name]
    sets = [frozenset(name for name, at in owners.items() if at == rank) for rank in range(ranks)]
    while _improved(sets, costs, sizes, memory, load):
        pass
    return {name: next(rank for rank, names in enumerate(sets) if name in names) for name in costs}


def _improved(
    sets: list[frozenset[str]], costs: Mapping[str, float], sizes: Mapping[str, int], memory: int, load: Load | None
) -> bool:
    """Move a table away from the most loaded rank, or swap it for another, if that lowers the higher of both loads."""
    weigh = load or (lambda names: sum(costs[name] for name in sorted(names)))
    loads, used = [weigh(names) for names in sets], [sum(sizes[name] for name in names) for names in sets]
    top = max(range(len(sets)), key=lambda rank: (loads[rank], -rank))
    for name in sorted(sets[top]):
        for other in ["", *sorted(other for names in sets for other in names if names is not sets[top])]:
            for rank in [r for r, names in enumerate(sets) if r != top and (not other or other in names)]:
                grow = sizes[name] - sizes.get(other, 0)
                if memory and (used[rank] + grow > memory or used[top] - grow > memory):
                    continue
                one, two = sets[top] - {name} | {other} - {""}, sets[rank] - {other} | {name}
                gain = costs[name] - costs.get(other, 0.0)
                changed = (load(one), load(two)) if load else (loads[top] - gain, loads[rank] + gain)
                if max(changed) < loads[top] - 1e-9 * abs(loads[top]):
                    sets[top], sets[rank] = one, two
                    return True
    return False


_COST_SCALE = 1_000_000  # costs are in millionths of the largest cost, since the solver needs integers


def place_exactly(
    costs: Mapping[str, float], sizes: Mapping[str, int], ranks: int, memory: int = 0, seconds: float = 10.0,
    choices: Mapping[str, Sequence[tuple[float, int]]] | None = None, fast: int = 0,
) -> dict[str, int]:  # fmt: skip
    """Assign tables to ranks with CP-SAT. The highest load is minimal if the solver finishes in time.

    Args:
        seconds: time limit, after which the best assignment so far is used.
        choices: for each table, options of (cost, bytes of fast memory) that replace ``costs``.
        fast: bytes of fast memory per rank.

    Raises:
        CedarError: OR-tools is not installed, or tables do not fit.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise CedarError("tables.planner = 'milp' needs OR-tools", fix="pip install 'cedar-data[schedules]'") from error
    model: Any = cp_model.CpModel()
    ways = choices or {name: [(cost, 0)] for name, cost in costs.items()}
    largest = max((cost for each in ways.values() for cost, _ in each), default=0.0) or 1.0
    whole = {(name, n): round(_COST_SCALE * cost / largest) for name in costs for n, (cost, _) in enumerate(ways[name])}
    names = sorted(costs, key=lambda name: (-costs[name], name))
    at = {(name, rank): model.new_bool_var(f"{name} {rank}") for name in names for rank in range(ranks)}
    way = {(*key, rank): model.new_bool_var(f"{key} {rank}") for key in whole for rank in range(ranks)}
    most = model.new_int_var(0, sum(whole.values()), "highest load")
    for number, name in enumerate(names):
        model.add_exactly_one(at[name, rank] for rank in range(ranks))
        for rank in range(ranks):
            model.add(sum(way[name, n, rank] for n in range(len(ways[name]))) == at[name, rank])
        for rank in range(number + 1, ranks):
            model.add(at[name, rank] == 0)  # break the symmetry between ranks
    for rank in range(ranks):
        model.add(sum(cost * way[*key, rank] for key, cost in whole.items()) <= most)
        model.add(sum(ways[name][n][1] * way[name, n, rank] for name, n in whole) <= fast)
        if memory:
            model.add(sum(sizes[name] * at[name, rank] for name in names) <= memory)
    model.minimize(most)
    solver: Any = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    if solver.solve(model) not in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
        return place(costs, sizes, ranks, memory)  # raises an error that names the table that does not fit
    return {name: next(rank for rank in range(ranks) if solver.value(at[name, rank])) for name in costs}


def by_width(stores: Mapping[int, Any], widths: Sequence[int], bags: Sequence[Bags]) -> list[torch.Tensor]:
    """Look up bags in the store of their table's width, and return the sums in the order of bags."""
    sums: dict[int, torch.Tensor] = {}
    for width, store in stores.items():
        at = [n for n, other in enumerate(widths) if other == width]
        sums |= dict(zip(at, store.lookup([bags[n] for n in at]), strict=True))
    return [sums[n] for n in range(len(bags))]


IDS, ROWS, GRADIENTS = "ids", "pooled rows", "row gradients"


@dataclass(frozen=True)
class TablePiece:
    """A piece of a table, with its width and its rank."""

    table: Table
    width: int
    rank: int


class ShardedTables:
    """Looks up tables whose pieces are on different ranks. Every rank looks up ids in all tables.

    Args:
        stores: this rank's pieces, by width.
        places: all pieces by table, in the order of rows or columns.
        features: options in the order of the bags.
        dtype: dtype in which rows are sent.
        scale: factor of the gradients that ranks send.
        replicas: replicated rows by width, looked up locally; only for features whose ids are looked up one by one.
    """

    def __init__(
        self, stores: Mapping[int, Tables], places: Mapping[str, Sequence[TablePiece]],
        features: Sequence[FeatureOptions], group: Group, dtype: torch.dtype = torch.float32,
        device: torch.device | None = None, scale: float = 1.0, replicas: Mapping[int, Replicas] | None = None,
    ) -> None:  # fmt: skip
        self.stores, self.places, self.features, self.group, self.scale = stores, places, tuple(features), group, scale
        asked = [(at, place) for at, feature in enumerate(features) for place in places[feature.home]]
        # The requests to each rank: a feature, and a piece of its table.
        self._requests = [[one for one in asked if one[1].rank == rank] for rank in range(group.size)]
        self._order = [one for of_rank in self._requests for one in of_rank]
        most = max((feature.rows for feature in features), default=0)
        self._kind = torch.int32 if most < 2**31 else torch.int64
        self._any_weights = any(f.weights for f in features)
        self.replicas = replicas or {}
        homes = {name: store for store in self.replicas.values() for name in store.slots}
        self._shared = {at: homes[f.home] for at, f in enumerate(features) if f.home in homes}
        self.moved(dtype, device)

    def moved(self, dtype: torch.dtype, device: torch.device | None) -> None:
        """Set the dtype and device of exchanged rows."""
        self._anchor = torch.zeros((), dtype=dtype, device=device, requires_grad=True)

    def lookup(self, bags: Sequence[Bags]) -> list[torch.Tensor]:
        """Return the sums, ``[bags, width]`` for each of ``bags``."""
        if not bags:
            return []
        group, me = self.group, self.group.rank
        split_bags = {at: store.split_bags(bags[at]) for at, store in self._shared.items()}
        bags = [split_bags[at][1] if at in split_bags else each for at, each in enumerate(bags)]
        firsts = list(accumulate(map(len, self._requests), initial=0))
        shares = [_bags_of_piece(bags[at], place.table, single=self.features[at].single) for at, place in self._order]
        fresh = all(store.fresh for store in self.replicas.values())
        sizes = [*([len(b), len(b.ids)] for b, _ in shares), [fresh, 0]]
        # [rank][request] -> number of bags, number of ids
        table = group.gather(torch.tensor(sizes, device=bags[0].ids.device), IDS).tolist()
        if not all(
            reported[-1][0] for reported in table
        ):  # a rank's state was requested, and the caller may have changed it
            for store in self.replicas.values():
                store.refill()
        mine = range(firsts[me], firsts[me + 1])
        received, weights = self._send([b for b, _ in shares], table, firsts)
        joined = [self._joined(n, k, received, weights) for k, n in enumerate(mine)]
        sums = by_width(self.stores, [self._order[n][1].width for n in mine], joined)
        parts = [
            torch.split(f, [table[rank][n][0] for rank in range(group.size)]) for f, n in zip(sums, mine, strict=True)
        ]
        out = [parts[k][rank].flatten() for rank in range(group.size) for k in range(len(mine))]
        values = torch.cat([self._anchor.detach().new_zeros(0), *out]).to(self._anchor.dtype)
        outgoing = [sum(table[rank][n][0] * self._order[n][1].width for n in mine) for rank in range(group.size)]
        own = [table[me][n][0] * place.width for n, (_, place) in enumerate(self._order)]
        back = [sum(own[a:b]) for a, b in pairwise(firsts)]
        moved = exchange_rows(values, group, outgoing, back, (ROWS, GRADIENTS), anchor=self._anchor, scale=self.scale)
        pieces: list[list[tuple[torch.Tensor, torch.Tensor | None, Table]]] = [[] for _ in bags]
        for part, (at, place), (_, kept) in zip(torch.split(moved, own), self._order, shares, strict=True):
            pieces[at].append((part.view(-1, place.width), kept, place.table))
        whole = [_combine_pieces(each) for each in pieces]
        widths = [self.places[self.features[at].home][0].width for at in split_bags]
        near = by_width(self.replicas, widths, [one for one, _, _ in split_bags.values()])
        for rows, (at, (_, _, places)) in zip(near, split_bags.items(), strict=True):
            whole[at] = _in_order(torch.cat([rows, whole[at]]), places)
        return whole

    def _send(self, asked: Sequence[Bags], table: Any, firsts: Sequence[int]) -> tuple[list[Any], list[Any]]:
        """Exchange requests. Return those to this rank, by sender: (lengths, ids) of each piece, and weights."""
        group, me = self.group, self.group.rank
        ranges = [range(a, b) for a, b in pairwise(firsts)]
        mine = ranges[me]
        message = torch.cat([self._message(n, bags) for n, bags in enumerate(asked)])
        send = [sum(sum(self._pieces(n, table[me][n])) for n in of_rank) for of_rank in ranges]
        receive = [sum(sum(self._pieces(n, table[rank][n])) for n in mine) for rank in range(group.size)]
        incoming = group.exchange(message, send, receive, IDS)
        received = []
        for rank, part in enumerate(torch.split(incoming, receive)):
            cut = torch.split(part, [size for n in mine for size in self._pieces(n, table[rank][n])])
            received.append([(cut[2 * k], cut[2 * k + 1]) for k in range(len(mine))])
        weights: list[Any] = [[None] * len(mine)] * group.size
        if self._any_weights:
            given = [_weights(bags) if self._has_weights(n) else bags.ids[:0].float() for n, bags in enumerate(asked)]
            to = [sum(len(given[n]) for n in of_rank) for of_rank in ranges]
            by = [[table[rank][n][1] * self._has_weights(n) for n in mine] for rank in range(group.size)]
            wide = torch.float64 if any(one.dtype == torch.float64 for one in given) else torch.float32
            came = group.exchange(torch.cat([one.to(wide) for one in given]), to, [sum(n) for n in by], IDS)
            cuts = [torch.split(p, n) for p, n in zip(torch.split(came, [sum(n) for n in by]), by, strict=True)]
            weights = [[w if self._has_weights(n) else None for w, n in zip(cut, mine, strict=True)] for cut in cuts]
        return received, weights

    def _has_weights(self, n: int) -> bool:
        return bool(self.features[self._order[n][0]].weights)

    def _message(self, n: int, bags: Bags) -> torch.Tensor:
        if self.features[self._order[n][0]].single:
            return bags.ids.to(self._kind)
        return torch.cat([bags.offsets.diff().to(self._kind), bags.ids.to(self._kind)])

    def _pieces(self, n: int, sizes: Sequence[int]) -> tuple[int, int]:
        """Return the message sizes of a request: of lengths, which single-id lookups omit, and of ids."""
        return (0 if self.features[self._order[n][0]].single else sizes[0]), sizes[1]

    def _joined(self, n: int, k: int, received: list[Any], weights: list[Any]) -> Bags:
        """Concatenate the bags of all ranks for one of this rank's pieces, in the order of ranks."""
        at, place = self._order[n]
        ids = torch.cat([row[k][1] for row in received]).long()
        if self.features[at].single:
            offsets = torch.arange(len(ids) + 1, device=ids.device)
        else:
            lengths = torch.cat([row[k][0] for row in received]).long()
            offsets = functional.pad(lengths.cumsum(0), (1, 0))
        given = [row[k] for row in weights]
        return Bags(place.table.name, ids, offsets, None if given[0] is None else torch.cat(given))


def _bags_of_piece(bags: Bags, piece: Table, *, single: bool) -> tuple[Bags, torch.Tensor | None]:
    """Return the bags' ids that are in a piece. For bags of one id, also return the positions of these ids."""
    if not piece.of or piece.rows == piece.whole[0]:
        return Bags(piece.name, bags.ids, bags.offsets, bags.weights), None
    first = piece.start[0]
    here = (bags.ids >= first) & (bags.ids < first + piece.rows)
    ids, weights = bags.ids[here] - first, None if bags.weights is None else bags.weights[here]
    if single:
        return Bags(piece.name, ids, torch.arange(len(ids) + 1, device=ids.device), weights), here.nonzero()[:, 0]
    offsets = functional.pad(here.cumsum(0), (1, 0))[bags.offsets]
    return Bags(piece.name, ids, offsets, weights), None


def _combine_pieces(pieces: Sequence[tuple[torch.Tensor, torch.Tensor | None, Table]]) -> torch.Tensor:
    """Combine the results of a table's pieces."""
    pieces = sorted(pieces, key=lambda one: one[2].start)
    rows = [part for part, _, _ in pieces]
    if len(pieces) == 1:
        return rows[0]
    if pieces[1][2].start[1]:
        return torch.cat(rows, 1)
    places = [kept for _, kept, _ in pieces if kept is not None]
    if places:
        return _in_order(torch.cat(rows), torch.cat(places))
    total = rows[0]
    for row in rows[1:]:
        total = total + row
    return total


def _in_order(rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Invert a permutation: put each row at its position in ``places``."""
    back = torch.empty_like(places)
    back[places] = torch.arange(len(places), device=places.device)
    return rows.index_select(0, back)


def _weights(bags: Bags) -> torch.Tensor:
    assert bags.weights is not None
    return bags.weights.float() if bags.weights.dtype != torch.float64 else bags.weights
