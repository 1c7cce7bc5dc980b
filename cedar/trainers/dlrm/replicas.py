"""Rows that are replicated on every rank and looked up locally, as in FlexShard (arXiv 2301.02959).

For each row one rank is responsible. After the backward pass, all ranks send the row's gradients to this rank, which
adds them in the order of ranks and sends the sum to all ranks, so that updates are bitwise the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from cedar.trainers.common.group import Group
from cedar.trainers.dlrm.sharding import GRADIENTS, IDS, ROWS, TablePiece
from cedar.trainers.dlrm.tables import BLOCK, Bags, Table, Tables, TorchTables, copy_error, merged, row_gradients


class Replicas(TorchTables):
    """This rank's copies of the replicated rows, in the order of ``ids``; see ``TorchTables``.

    The pieces of the tables also have space for these rows. When the state is requested, the rows are written to the
    pieces, and they are read again before the next lookup.

    Args:
        ids: the replicated rows of each table, int64 without duplicates.
        places: the pieces of each table, which must be split by rows.
        store: this rank's pieces of this width; None if it has none.
        scale: factor of gradients.
    """

    kind = "copies"

    def __init__(
        self, ids: Mapping[str, torch.Tensor], width: int, places: Mapping[str, Sequence[TablePiece]],
        store: Tables | None, group: Group, scale: float, **settings: Any,
    ) -> None:  # fmt: skip
        super().__init__([Table(name, len(rows)) for name, rows in ids.items()], width, **settings)
        self.store, self.group, self.scale = store, group, scale
        self.fresh = False  # whether these copies are at least as recent as the rows in the pieces
        self.slots: dict[str, torch.Tensor] = {}
        # For each table: its pieces, indices in this block of the rows in each piece, and their indices in the piece.
        self._homes: dict[str, list[tuple[TablePiece, torch.Tensor, torch.Tensor]]] = {}
        for name, rows in ids.items():
            whole = places[name][0].table.whole[0] or places[name][0].table.rows
            slots = torch.full((whole,), -1, dtype=torch.int32)
            slots[rows] = torch.arange(len(rows), dtype=torch.int32)
            self.slots[name] = slots.to(self.device)
            self._homes[name] = []
            for place in places[name]:
                first, last = place.table.start[0], place.table.start[0] + place.table.rows
                here = ((rows >= first) & (rows < last)).nonzero()[:, 0]
                own = (here + self.starts[name]).to(self.device)
                self._homes[name].append((place, own, (rows[here] - first).to(self.device)))
        self._ids = torch.cat(list(ids.values())).to(self.device)

    def __deepcopy__(self, memo: object) -> Replicas:
        raise copy_error("tables whose frequent rows are on every rank")

    def moved(self, device: torch.device) -> None:
        super().moved(device)
        self._ids, self.slots = self._ids.to(device), {name: slots.to(device) for name, slots in self.slots.items()}
        self._homes = {
            name: [(place, own.to(device), rows.to(device)) for place, own, rows in homes]
            for name, homes in self._homes.items()
        }

    def split_bags(self, bags: Bags) -> tuple[Bags, Bags, torch.Tensor]:
        """Split bags of one id each into replicated ids and others; also return the positions of both, concatenated."""
        slots = self.slots[bags.table].index_select(0, bags.ids)
        here = slots >= 0
        near, far = slots[here].long(), bags.ids[~here]
        every = [torch.arange(len(ids) + 1, device=ids.device) for ids in (near, far)]
        places = torch.cat([here.nonzero()[:, 0], (~here).nonzero()[:, 0]])
        return Bags(bags.table, near, every[0]), Bags(bags.table, far, every[1]), places

    def keep(self) -> None:
        """Write the replicated rows back to this rank's pieces."""
        if self.fresh:
            self.fresh = False
            for kind, piece, own, rows in self._own_pieces():
                piece.index_copy_(0, rows.to(piece.device), self._all(kind).index_select(0, own).to(piece.device))

    def refill(self) -> None:
        """Read the replicated rows from the pieces of all ranks. All ranks must call it."""
        self.keep()
        pieces = iter(self._own_pieces())
        for homes in self._homes.values():
            counts = [0] * self.group.size
            for place, own, _ in homes:
                counts[place.rank] = len(own)
            every = torch.cat([own for _, own, _ in homes])
            for kind in ("weight", *self.moments):
                values = self._all(kind)
                mine = values[:0]
                if any(place.rank == self.group.rank for place, _, _ in homes):
                    _, piece, _, rows = next(pieces)
                    mine = piece.index_select(0, rows.to(piece.device)).to(values.device)
                values[every] = self._to_all(mine, counts, ROWS)
        self.fresh = True

    def _own_pieces(self) -> list[tuple[str, torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Return for each of this rank's pieces: kind, values, indices of its rows in this block and in the piece."""
        state = self.store.state() if self.store else {}
        return [
            (kind, state[f"{place.table.name}.{kind}"], own, rows)
            for homes in self._homes.values()
            for place, own, rows in homes
            if place.rank == self.group.rank
            for kind in ("weight", *self.moments)
        ]

    def _to_all(self, rows: torch.Tensor, counts: Sequence[int], phase: str) -> torch.Tensor:
        """Gather the rows of all ranks. ``counts``: the number of rows of each rank."""
        size = self.group.size
        return self.group.exchange(torch.cat([rows] * size), [len(rows)] * size, counts, phase)

    @torch.no_grad()
    def update(self) -> None:
        size = self.group.size
        parts = [part for one in merged(self._pending) for part in row_gradients(*one)]
        self.clear()
        rows = torch.cat([self._ids[:0], *(rows for rows, _ in parts)])
        summed = torch.cat([torch.zeros(0, self.width, dtype=self.wide, device=self.device), *(g for _, g in parts)])
        order = torch.argsort(rows % size, stable=True)
        send = torch.bincount(rows % size, minlength=size)
        counts = self.group.gather(send, IDS).tolist()
        receive = [counts[rank][self.group.rank] for rank in range(size)]
        rows = self.group.exchange(rows[order].int(), send.tolist(), receive, IDS).long()
        summed = self.group.exchange(summed[order] * self.scale, send.tolist(), receive, GRADIENTS)
        single = torch.arange(len(rows) + 1, device=rows.device)
        parts = list(row_gradients(rows, single, None, summed)) if len(rows) else []
        rows = torch.cat([rows[:0], *(rows for rows, _ in parts)])
        summed = torch.cat([summed[:0], *(g for _, g in parts)])
        lengths = self.group.gather(torch.tensor([len(rows)], device=rows.device), IDS)[:, 0].tolist()
        rows, summed = self._to_all(rows.int(), lengths, IDS).long(), self._to_all(summed, lengths, GRADIENTS)
        for at in range(0, len(rows), BLOCK):
            self._apply(rows[at : at + BLOCK], summed[at : at + BLOCK])

    def _own(self, rows: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        return self._ids.index_select(0, rows)
