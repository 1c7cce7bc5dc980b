"""Tables over ranks: deduplicated ids go to the rank that holds a table, and summed rows come back (RecD's O5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from cedar.trainers.common.group import Group
from cedar.trainers.dlrm.options import FeatureOptions
from cedar.trainers.dlrm.tables import Bags, Tables

IDS, ROWS, GRADIENTS = "ids", "pooled rows", "row gradients"


class ShardedTables:
    """Each table whole on one rank; every rank looks up all of them.

    Args:
        local: the tables of this rank.
        owners: the rank of each table.
        features: in the order in which bags come.
        group: the ranks.
        width: of a row.
        dtype: of rows as they travel.
        device: where all is.
    """

    def __init__(
        self,
        local: Tables,
        owners: dict[str, int],
        features: Sequence[FeatureOptions],
        group: Group,
        width: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> None:
        self.local, self.group, self.features = local, group, tuple(features)
        self._none = torch.zeros(0, width, dtype=dtype, device=device)
        self.tables = local.tables
        # The features of each rank's tables.
        self._of = [[at for at, f in enumerate(features) if owners[f.home] == r] for r in range(group.size)]
        self._kind = torch.int32 if max((f.rows for f in features), default=0) < 2**31 else torch.int64
        self._weighed = any(f.weights for f in features)
        self._anchor = torch.zeros((), dtype=dtype, device=device, requires_grad=True)

    def begin(self, rate: float, step: int) -> None:
        self.local.begin(rate, step)

    def update(self) -> None:
        self.local.update()

    def state(self) -> dict[str, torch.Tensor]:
        return self.local.state()

    def lookup(self, bags: Sequence[Bags]) -> list[torch.Tensor]:
        if not bags:
            return []
        group, mine = self.group, self._of[self.group.rank]
        sizes = torch.tensor([[len(b), len(b.ids)] for b in bags], device=bags[0].ids.device)
        table = group.gather(sizes, IDS).tolist()  # [rank][feature] -> bags, ids
        received, weights = self._send(bags, table)
        found = self.local.lookup([self._joined(at, table, received, weights) for at in mine])
        counts = [[table[rank][at][0] for at in mine] for rank in range(group.size)]
        parts = [torch.split(f, [row[k] for row in counts]) for k, f in enumerate(found)]
        out = [parts[k][rank] for rank in range(group.size) for k in range(len(mine))]
        rows = torch.cat(out) if out else self._none
        back = [sum(table[group.rank][at][0] for at in held) for held in self._of]
        moved: torch.Tensor = _Exchange.apply(self._anchor, rows, group, [sum(row) for row in counts], back)  # type: ignore[no-untyped-call]
        order = [at for held in self._of for at in held]
        pieces = dict(zip(order, torch.split(moved, [len(bags[at]) for at in order]), strict=True))
        return [pieces[at] for at in range(len(bags))]

    def _send(self, bags: Sequence[Bags], table: Any) -> tuple[list[Any], list[Any]]:
        """What every rank asks of this one, by rank and feature: (lengths or None, ids); and weights."""
        group, mine = self.group, self._of[self.group.rank]
        message = [self._message(at, bags[at]) for held in self._of for at in held]
        send = [sum(self._length(at, table[group.rank][at]) for at in held) for held in self._of]
        receive = [sum(self._length(at, table[rank][at]) for at in mine) for rank in range(group.size)]
        found = group.exchange(torch.cat(message), send, receive, IDS)
        received = []
        for rank, part in enumerate(torch.split(found, receive)):
            pieces = torch.split(part, [n for at in mine for n in self._pieces(at, table[rank][at])])
            received.append([(pieces[2 * k], pieces[2 * k + 1]) for k in range(len(mine))])
        weights: list[Any] = [[None] * len(mine)] * group.size
        if self._weighed:
            given = [_weights(bags[at]) for held in self._of for at in held if self.features[at].weights]
            wanted = [[at for at in held if self.features[at].weights] for held in self._of]
            to = [sum(table[group.rank][at][1] for at in held) for held in wanted]
            own = wanted[group.rank]
            by = [[table[rank][at][1] for at in own] for rank in range(group.size)]
            came = group.exchange(torch.cat(given), to, [sum(n) for n in by], IDS)
            cut = [
                dict(zip(own, torch.split(p, n), strict=True))
                for p, n in zip(torch.split(came, [sum(n) for n in by]), by, strict=True)
            ]
            weights = [[pieces.get(at) for at in mine] for pieces in cut]
        return received, weights

    def _message(self, at: int, bags: Bags) -> torch.Tensor:
        if self.features[at].single:
            return bags.ids.to(self._kind)
        return torch.cat([bags.offsets.diff().to(self._kind), bags.ids.to(self._kind)])

    def _pieces(self, at: int, sizes: Sequence[int]) -> tuple[int, int]:
        """Numbers of a feature's message: lengths, which those that are looked up one by one do without, and ids."""
        return (0 if self.features[at].single else sizes[0]), sizes[1]

    def _length(self, at: int, sizes: Sequence[int]) -> int:
        return sum(self._pieces(at, sizes))

    def _joined(self, at: int, table: Any, received: list[Any], weights: list[Any]) -> Bags:
        """The bags of all ranks for one feature of this rank's tables, in the order of ranks."""
        k = self._of[self.group.rank].index(at)
        ids = torch.cat([row[k][1] for row in received]).long()
        if self.features[at].single:
            offsets = torch.arange(len(ids) + 1, device=ids.device)
        else:
            lengths = torch.cat([row[k][0] for row in received]).long()
            offsets = functional.pad(lengths.cumsum(0), (1, 0))
        given = [row[k] for row in weights]
        return Bags(self.features[at].home, ids, offsets, None if given[0] is None else torch.cat(given))


def _weights(bags: Bags) -> torch.Tensor:
    assert bags.weights is not None
    return bags.weights.float() if bags.weights.dtype != torch.float64 else bags.weights


class _Exchange(torch.autograd.Function):
    """Rows to each rank; their gradients come back the same way. The anchor has every rank take part in that."""

    @staticmethod
    def forward(ctx: Any, _anchor: Any, rows: torch.Tensor, group: Group, send: list[int], receive: list[int]) -> Any:
        ctx.how = group, send, receive
        return group.exchange(rows, send, receive, ROWS)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, torch.Tensor, None, None, None]:
        group, send, receive = ctx.how
        return None, group.exchange(grads[0].contiguous(), receive, send, GRADIENTS), None, None, None
