"""SliceStream: one rank's slice of every batch, for ``split_batches=True``."""

from __future__ import annotations

import math

import numpy as np

from cedar.core.columns import Index
from cedar.core.stream import At, Count, Flow, Piece, Position, Pulled, Rows, Stream


class SliceStream(Stream):
    """This rank's slice of each global batch. Positions are those of the whole batches. With ``even``, rows of the last
    batch that do not divide evenly among ranks are left out.
    """

    def __init__(self, source: Stream, rank: int, world: int, even: bool = False) -> None:
        self._source = source
        self.rank, self.world, self.even = rank, world, even
        self.left_out = 0  # rows left out by flows that reached their end

    @property
    def count(self) -> Count:  # type: ignore[override]
        count = self._source.count
        if not self.even or not count or count == math.inf:
            return count
        return count - (len(self.rows_of(int(count) - 1) or range(self.world)) < self.world)

    def start(self) -> At:
        return self._source.start()

    def seek(self, unit: int, lap: int = 0) -> Position:
        return self._source.seek(unit, lap)

    def rows_of(self, unit: int) -> range | None:
        return self._source.rows_of(unit)

    def fits(self, at: At) -> bool:
        return self._source.fits(at)

    def open_at(self, at: At, lap: int) -> Flow:
        return _SliceFlow(self._source.open([at, 0], lap), self)


class _SliceFlow(Flow):
    def __init__(self, source: Flow, stream: SliceStream) -> None:
        self._source, self._stream = source, stream

    def pull(self, wait: bool) -> Pulled:
        piece = self._source.pull(wait)
        if not isinstance(piece, Piece) or not piece.batch:
            return piece
        rank, world = self._stream.rank, self._stream.world
        slots = counted_slots(piece.rows)
        over = len(slots) % world if self._stream.even else 0
        self._stream.left_out += over
        if over and over == len(slots):
            return self.pull(wait)
        ends = [
            0,
            *(slots + 1).tolist(),
        ]  # end of each counted slot; failed slots that it replaces precede it, in the same slice
        low, high = (ends[(len(slots) - over) * each // world] for each in (rank, rank + 1))
        mine = piece.rows.slice(low, high if rank + 1 < world or over else len(piece.rows))
        return Piece(mine, piece.at, piece.skip, True, piece.ends_window, piece.unit_key)

    def close(self) -> None:
        self._source.close()


def counted_slots(rows: Rows) -> Index:
    """Return the slots that count toward a batch's size: all except failed rows that the next row replaces."""
    counted = rows.counted()
    return np.arange(len(rows)) if counted is None else np.flatnonzero(counted)
