"""SliceStream: of every batch, one rank's slice (``split_batches=True``)."""

from __future__ import annotations

from cedar.stream import At, Count, Flow, Piece, Position, Pulled, Stream


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
        rows = len(piece.rows)
        mine = piece.rows.slice(rows * self._rank // self._world, rows * (self._rank + 1) // self._world)
        return Piece(mine, piece.at, piece.skip, True, piece.ends_window)

    def close(self) -> None:
        self._source.close()
