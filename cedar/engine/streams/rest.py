"""RestStream: the remaining units of a stream after some units were delivered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cedar.core.stream import At, Count, Flow, Piece, Position, Pulled, Stream, is_count, is_list
from cedar.engine.streams.deal import Interval, Numbers


class RestStream(Stream):
    """Delivers the remaining units of a stream whose count is known, in order.

    ``at`` is [a unit's number among the remaining units, its position in ``source`` or None].

    Args:
        source: the complete stream.
        left: intervals of the remaining unit numbers; a stop of None means the end of the stream.
    """

    def __init__(self, source: Stream, left: Sequence[Sequence[int | None]]) -> None:
        self.source = source
        end = math.inf if source.count is None else source.count
        stops = [(int(low or 0), end if high is None else min(high, end)) for low, high in left]
        self.left: list[Interval] = [(low, high) for low, high in stops if low < high]
        self.numbers = Numbers(self.left)

    @property
    def count(self) -> Count:  # type: ignore[override]
        return self.numbers.total if self.left else 0

    def start(self) -> At:
        return [0, None]

    def seek(self, unit: int, lap: int = 0) -> Position:
        if not self.left or unit >= self.numbers.total:
            return [[unit, None], 0]
        return [[unit, self.source.seek(self.numbers.number(unit), lap)], 0]

    def fits(self, at: At) -> bool:
        return is_list(at, 2) and is_count(at[0]) and (at[1] is None or self.source.fits_position(at[1]))

    def open_at(self, at: At, lap: int) -> Flow:
        return _RestFlow(self, at, lap)

    def source_runs(self, low: int, high: float) -> list[Interval]:
        """Return intervals of unit numbers of ``source`` that correspond to the remaining units ``low`` to ``high``."""
        found: list[Interval] = []
        before = 0
        for first, last in self.left:
            start, stop = max(low, before), min(high, before + last - first)
            if start < stop:
                found.append((first + int(start) - before, first + stop - before))
            if last == math.inf:
                break
            before += int(last) - first
        return found


class _RestFlow(Flow):
    def __init__(self, stream: RestStream, at: At, lap: int) -> None:
        self._stream, self._lap = stream, lap
        self._number, self._below = int(at[0]), at[1]
        self._flow: Flow | None = None
        self._units_left: float = 0  # units of the current interval not pulled yet
        self._room = math.inf

    def limit(self, units: int) -> None:
        self._room = units
        if self._flow is not None:
            self._flow.limit(int(min(units, self._units_left)))

    def pull(self, wait: bool) -> Pulled:
        stream = self._stream
        while True:
            if self._flow is None:
                runs = stream.source_runs(self._number, math.inf)
                if not runs:
                    return None
                low, high = runs[0]
                self._flow = stream.source.open(self._below or stream.source.seek(low, self._lap), self._lap)
                self._below, self._units_left = None, high - low
                if min(self._units_left, self._room) != math.inf:
                    self._flow.limit(int(min(self._units_left, self._room)))
            piece: Any = self._flow.pull(wait)
            if isinstance(piece, Piece):
                if piece.units > self._units_left:
                    piece = piece.slice(0, int(self._units_left))
                at = [self._number, piece.position()]
                self._number += piece.units
                self._units_left -= piece.units
                if not self._units_left:
                    self.close()
                return Piece(piece.rows, at, 0, piece.batch)
            if piece is not None:
                return piece  # type: ignore[no-any-return]
            self.close()
            if self._units_left:  # the source ended with fewer units than its count
                return None

    def close(self) -> None:
        if self._flow is not None:
            self._flow.close()
            self._flow = None
