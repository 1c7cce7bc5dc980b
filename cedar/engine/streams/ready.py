"""ReadyStream: deliver rows as they finish, if no operator needs their order, for ``loader(order="any")``.

The units of a stream are numbered in order. Tasks are small, and whichever task finishes first is delivered next, so a
slow row delays only its own task. A position records the delivered units: all units below some number, and runs of
units after it. There are at most as many such runs as tasks in progress.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cedar.core.errors import ResumeError
from cedar.core.stream import (
    PENDING,
    At,
    Count,
    Flow,
    GeneratorFlow,
    Piece,
    Pieces,
    Position,
    Pulled,
    Stream,
    is_count,
    is_list,
)
from cedar.engine.streams.stage import StageFlow, StageStream

Run: TypeAlias = tuple[int, int]  # unit numbers from the first (inclusive) to the second (exclusive)
_END = 1 << 62


class ReadyStream(Stream):
    """The units of ``inner``, in the order in which they finish.

    ``at`` is a list of: the position in ``inner`` of the first undelivered unit; its number; the delivered runs after
    it; the run to deliver next, or None; the number of splits that a lane has started, or None.

    Args:
        inner: the stream with its units in order.
    """

    def __init__(self, inner: Stream) -> None:
        self.inner = inner
        self.free = False  # whether units may be delivered in any order

    @property
    def count(self) -> Count:  # type: ignore[override]
        return self.inner.count

    @property
    def stage(self) -> StageStream | None:
        """The stage whose tasks are delivered as they finish; None if ``inner`` can only deliver in order."""
        return self.inner if isinstance(self.inner, StageStream) and self.inner.any_order else None

    def start(self) -> At:
        return [[self.inner.start(), 0], 0, [], None, None]

    def seek(self, unit: int, lap: int = 0) -> Position:
        return [[self.inner.seek(unit, lap), unit, [], None, None], 0]

    def fits(self, at: At) -> bool:
        if not is_list(at, 5):
            return False
        position, number, taken, run, keeps = at
        runs: list[Any] = [*taken, *([] if run is None else [run])] if isinstance(taken, (list, tuple)) else [None]
        return (
            self.inner.fits_position(position)
            and is_count(number)
            and all(is_list(each, 2) and is_count(each[0]) and is_count(each[1]) and each[0] < each[1] for each in runs)
            and all(a[1] <= b[0] for a, b in pairwise([[0, number], *taken]))
            and (run is None or (run[0] >= number and not any(a < run[1] and run[0] < b for a, b in taken)))
            and (keeps is None or is_count(keeps))
        )

    def open_at(self, at: At, lap: int) -> Flow:
        return _ReadyFlow(self, at, lap)


class _ReadyFlow(Flow):
    def __init__(self, stream: ReadyStream, at: At, lap: int) -> None:
        self._base: int  # number of the first undelivered unit
        self._keeps: int | None
        position, self._base, taken, run, self._keeps = at
        self._stream = stream
        self._taken: list[Run] = [(a, b) for a, b in taken]  # delivered runs after the base, in order
        self._early: dict[int, Piece] = {}  # finished pieces that must not be delivered yet, by their first unit
        self._run: Run | None = None if run is None else (run[0], run[1])  # delivered first, since it is in progress
        cuts = np.unique(np.array([*self._taken, *([] if run is None else [run])], dtype=np.int64))
        stage = stream.stage
        self._source = (stream.inner if stage is None else stage.source).open(position, lap)
        self._number = self._base  # number of the next unit of the source
        self._stop = _END
        self._places: deque[tuple[int, Position]] = deque([(self._base, position)])  # positions of units, by number
        self._undelivered = GeneratorFlow(self._numbered(list(self._taken), cuts), self._source)
        self._flow = None if stage is None else StageFlow(stage, self._undelivered, position)

    def _numbered(self, taken: Sequence[Run], cuts: npt.NDArray[np.int64]) -> Pieces:
        """Yield undelivered units with their numbers as positions; pieces are cut where runs begin and end."""
        wait = yield PENDING
        while self._number < self._stop and (piece := self._source.pull(wait)) is not None:
            if piece is PENDING:
                wait = yield PENDING
            elif piece.units:
                first, last = self._number, min(self._number + piece.units, self._stop)
                self._number = last
                if first > self._places[-1][0]:
                    self._places.append((first, piece.position()))
                low, high = np.searchsorted(cuts, [first + 1, last]).tolist()
                for start, stop in pairwise([first, *cuts[low:high].tolist(), last]):
                    if not _holds(taken, start):
                        part = piece.slice(start - first, stop - first)
                        wait = yield Piece(part.rows, start, 0, False, part.ends_window, keeps=piece.keeps)
            del piece

    def _position(self, number: int) -> Position:
        """Return the position of a unit in the source; earlier positions are discarded."""
        places = self._places
        while len(places) > 1 and places[1][0] <= number:
            places.popleft()
        first, (at, skip) = places[0]
        return [at, skip + number - first]

    def limit(self, units: int) -> None:
        stop = self._base + units
        for first, last in self._taken:
            stop += last - first if first < stop else 0
        if self._run is not None:
            first, last = self._run
            self._run = (first, min(last, stop)) if first < stop else None
        self._stop = stop
        self._source.limit(stop - self._number)

    def pull(self, wait: bool) -> Pulled:
        while True:
            wanted = self._wanted()
            if wanted in self._early:
                return self._handed(self._early.pop(wanted))
            piece = self._flow.pull_ready(wait, wanted) if self._flow else self._undelivered.pull(wait)
            if not isinstance(piece, Piece):
                if piece is None and (self._early or self._run):
                    raise ResumeError(
                        f"the state names row {wanted} of this rank's part of the epoch, which does not exist",
                        fix="resume with the pipeline and data that were saved, or begin a new epoch without the state",
                    )
                return piece
            self._early[sum(piece.position())] = piece

    def _wanted(self) -> int | None:
        """Return the number of the unit that must be delivered next; None if any unit may be."""
        if self._run is not None:
            return int(self._run[0])
        if not self._stream.free:
            return int(self._base)
        return min(self._early) if self._early else None

    def _handed(self, piece: Piece) -> Piece:
        first = sum(piece.position())
        last = first + piece.units
        at = [*self._at(), [first, last], self._keeps]
        if self._run is not None:
            self._run = (last, self._run[1]) if last < self._run[1] else None
        insort(self._taken, (first, last))
        self._join()
        if piece.keeps is not None:
            self._keeps = max(piece.keeps, self._keeps or 0)
        end = [[*self._at(), None, self._keeps], 0]
        return Piece(piece.rows, at, 0, False, piece.ends_window, keeps=self._keeps, end=end)

    def _at(self) -> list[Any]:
        return [self._position(self._base), self._base, [list(run) for run in self._taken]]

    def _join(self) -> None:
        """Join adjacent delivered runs. A run that begins at the first undelivered unit advances that number."""
        joined: list[Run] = []
        for first, last in self._taken:
            if first == self._base:
                self._base = last
            elif joined and joined[-1][1] == first:
                joined[-1] = joined[-1][0], last
            else:
                joined.append((first, last))
        self._taken = joined

    def close(self) -> None:
        (self._flow or self._undelivered).close()


def _holds(runs: Sequence[Run], number: int) -> bool:
    place = bisect_right(runs, (number, _END)) - 1
    return place >= 0 and number < runs[place][1]
