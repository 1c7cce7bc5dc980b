"""SliceStream: of every batch, one rank's slice (``split_batches=True``)."""

from __future__ import annotations

import numpy as np

from cedar.core.stream import At, Count, Flow, Piece, Position, Pulled, Rows, Stream


class SliceStream(Stream):
    """Batches of global size, cut evenly; the position is the whole batch's."""

    def __init__(self, source: Stream, rank: int, world: int) -> None:
        self._source = source
        self._rank = rank
        self._world = world

    @property
    def count(self) -> Count:  # type: ignore[override]
        return self._source.count

    def start(self) -> At:
        return self._source.start()

    def seek(self, unit: int, lap: int = 0) -> Position:
        return self._source.seek(unit, lap)

    def fits(self, at: At) -> bool:
        return self._source.fits(at)

    def open_at(self, at: At, lap: int) -> Flow:
        return _SliceFlow(self._source.open([at, 0], lap), self._rank, self._world)


class _SliceFlow(Flow):
    def __init__(self, source: Flow, rank: int, world: int) -> None:
        self._source = source
        self._rank = rank
        self._world = world

    def pull(self, wait: bool) -> Pulled:
        piece = self._source.pull(wait)
        if not isinstance(piece, Piece) or not piece.batch:
            return piece
        mine = piece.rows.slice(self._bound(piece.rows, self._rank), self._bound(piece.rows, self._rank + 1))
        return Piece(mine, piece.at, piece.skip, True, piece.ends_window, piece.unit_key)

    def _bound(self, rows: Rows, rank: int) -> int:
        """Where a rank's slice begins; slots that the next row replaced do not count."""
        counted = rows.counted()
        if counted is None:
            return len(rows) * rank // self._world
        before = int(counted.sum()) * rank // self._world
        return (
            len(rows) if rank == self._world else int(np.searchsorted(np.cumsum(counted), before)) + 1 if before else 0
        )

    def close(self) -> None:
        self._source.close()
