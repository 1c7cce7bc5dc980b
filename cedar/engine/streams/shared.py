"""SharedStream: run a part of a pipeline once for several consumers, as long as they progress at a similar rate.

If the distance between consumers exceeds the buffer, the slower ones get separate flows, which deliver the same rows.
"""

from __future__ import annotations

from cedar.core.stream import PENDING, At, Count, Flow, Piece, Position, Pulled, Stream

_BUFFER_BYTES = 64 << 20
_BUFFER_PIECES = 64


class SharedStream(Stream):
    """A stream whose flows at the same position share one flow of ``source``."""

    def __init__(self, source: Stream) -> None:
        self.source = source
        self._trunks: list[_Trunk] = []

    @property
    def count(self) -> Count:  # type: ignore[override]
        return self.source.count

    def start(self) -> At:
        return self.source.start()

    def seek(self, unit: int, lap: int = 0) -> Position:
        return self.source.seek(unit, lap)

    def seek_window(self, unit: int, lap: int = 0) -> tuple[Position, int]:
        return self.source.seek_window(unit, lap)

    def fits(self, at: At) -> bool:
        return self.source.fits(at)

    def open_at(self, at: At, lap: int) -> Flow:
        for trunk in self._trunks:
            place = trunk.find(at, lap)
            if place is not None:
                return _Branch(self, trunk, place, lap)
        trunk = self.grow([at, 0], lap)
        return _Branch(self, trunk, 0, lap)

    def grow(self, position: Position, lap: int) -> _Trunk:
        """Open a new flow, which later consumers may join."""
        trunk = _Trunk(self.source.open(position, lap), position, lap)
        self._trunks.append(trunk)
        return trunk

    def drop(self, trunk: _Trunk) -> None:
        """Close a flow that has no consumers any more."""
        self._trunks = [t for t in self._trunks if t is not trunk]
        trunk.flow.close()


class _Trunk:
    def __init__(self, flow: Flow, position: Position, lap: int) -> None:
        self.flow = flow
        self.lap = lap
        self.pieces: list[Piece] = []
        self.first = 0  # number of the first buffered piece
        self.ended = False
        self.consumers: list[_Branch] = []
        self._opened = position

    def find(self, at: At, lap: int) -> int | None:
        """Return the number of the buffered piece that begins at ``at``; None if there is none."""
        if lap != self.lap:
            return None
        if self.first == 0 and self._opened == [at, 0]:
            return 0
        for i, piece in enumerate(self.pieces):
            if piece.at == at and piece.skip == 0:
                return self.first + i
        return None

    def pull(self, number: int, wait: bool) -> Pulled:
        while number >= self.first + len(self.pieces):
            if self.ended:
                return None
            piece = self.flow.pull(wait)
            if piece is PENDING:
                return PENDING
            if not isinstance(piece, Piece):
                self.ended = True
                return None
            self.pieces.append(piece)
        return self.pieces[number - self.first]

    def trim(self) -> None:
        """Drop pieces that all consumers have pulled; if too many remain, detach all but the fastest consumers."""
        slowest = min((c.number for c in self.consumers), default=self.first + len(self.pieces))
        excess = len(self.pieces) > _BUFFER_PIECES or sum(p.rows.nbytes for p in self.pieces) > _BUFFER_BYTES
        if excess:
            fastest = max(c.number for c in self.consumers)
            for consumer in [c for c in self.consumers if c.number < fastest]:
                consumer.leave()
            slowest = fastest
        del self.pieces[: slowest - self.first]
        self.first = slowest


class _Branch(Flow):
    """One consumer of a trunk."""

    def __init__(self, stream: SharedStream, trunk: _Trunk, number: int, lap: int) -> None:
        self._stream = stream
        self._trunk = trunk
        self._lap = lap
        self.number = number
        trunk.consumers.append(self)

    def pull(self, wait: bool) -> Pulled:
        piece = self._trunk.pull(self.number, wait)
        if isinstance(piece, Piece):
            self.number += 1
            self._trunk.trim()
        return piece

    def limit(self, units: int) -> None:
        self._trunk.flow.limit(units)

    def leave(self) -> None:
        """Continue with a separate flow, from the next piece."""
        trunk = self._trunk
        trunk.consumers.remove(self)
        position = trunk.pieces[self.number - trunk.first].position()
        self._trunk = self._stream.grow(position, self._lap)
        self._trunk.consumers.append(self)
        self.number = 0

    def close(self) -> None:
        if self in self._trunk.consumers:
            self._trunk.consumers.remove(self)
            if not self._trunk.consumers:
                self._stream.drop(self._trunk)
