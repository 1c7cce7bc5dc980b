"""Streams derived from another one: shared by consumers, sliced for ranks, grouped, cut into windows, or its rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np

from cedar.core.columns import Index
from cedar.core.errors import RowError
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
    Rows,
    Stream,
    converted,
    is_count,
    is_list,
)
from cedar.engine.streams.deal import Interval, Numbers
from cedar.engine.streams.stage import StageStream
from cedar.engine.task_context import Tasks
from cedar.plan.graph import Node
from cedar.tasks.chain import Program

_BUFFER_BYTES = 64 << 20
_BUFFER_PIECES = 64


class DerivedStream(Stream):
    """A stream with the positions of ``source``, and as many units, unless a subclass changes that."""

    def __init__(self, source: Stream) -> None:
        self.source = source

    @property
    def count(self) -> Count:  # type: ignore[override]
        return self.source.count

    def start(self) -> At:
        return self.source.start()

    def seek(self, unit: int, lap: int = 0) -> Position:
        return self.source.seek(unit, lap)

    def fits(self, at: At) -> bool:
        return self.source.fits(at)


# ---- streams of operators outside cedar ------------------------------------------------------------------------------


def blame(stream: Stream, node: Node) -> Stream:
    """Return the stream of the operator at ``node``; errors of a class outside cedar name it and the user's line."""
    if not type(stream).__module__.startswith("cedar."):
        for name in ("open_at", "cut"):  # on the object, which stays of the same class
            vars(stream)[name] = partial(_open_blamed, getattr(stream, name), node)
    return stream


def _open_blamed(open_flow: Callable[..., Flow], node: Node, *where: Any) -> Flow:
    def call(function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:
            if type(error).__module__.startswith(("cedar", "concurrent.")):  # an input's, or the end of a window or run
                raise
            what = f"{node.operator.label()} failed: {type(error).__name__}: {error}"
            raise RowError(what, site=node.site, fix="fix the operator's stream") from error

    source = call(open_flow, *where)
    return GeneratorFlow(converted(partial(call, source.pull), lambda piece: piece), source, limit=source.limit)


# ---- one flow for several consumers ----------------------------------------------------------------------------------


class SharedStream(DerivedStream):
    """A part of a pipeline that runs once for several consumers, as long as they progress at a similar rate.

    Flows at the same position share one flow of ``source``. If the distance between consumers exceeds the buffer, the
    slower ones get separate flows, which deliver the same rows.
    """

    def __init__(self, source: Stream) -> None:
        super().__init__(source)
        self._trunks: list[_Trunk] = []

    def seek_window(self, unit: int, lap: int = 0) -> tuple[Position, int]:
        return self.source.seek_window(unit, lap)

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


# ---- slices and groups of units --------------------------------------------------------------------------------------


class SliceStream(DerivedStream):
    """This rank's slice of each global batch, for ``split_batches=True``. Positions are those of the whole batches.

    Args:
        drops: leave out batches with fewer rows than ranks, so that no rank receives an empty batch.
        even: also leave out rows of the last batch that do not divide evenly among ranks.
    """

    def __init__(self, source: Stream, rank: int, world: int, drops: bool = False, even: bool = False) -> None:
        super().__init__(source)
        self.rank, self.world, self.drops, self.even = rank, world, drops, even
        self.left_out = 0  # rows left out by flows that reached their end

    @property
    def count(self) -> Count:  # type: ignore[override]
        count = self.source.count
        if not self.even or not count or count == math.inf:
            return count
        return count - (len(self.rows_of(int(count) - 1) or range(self.world)) < self.world)

    def rows_of(self, unit: int) -> range | None:
        return self.source.rows_of(unit)

    def open_at(self, at: At, lap: int) -> Flow:
        flow = self.source.open([at, 0], lap)
        return GeneratorFlow(converted(flow.pull, self._slice), flow)

    def _slice(self, piece: Piece) -> Piece | None:
        if not piece.batch:
            return piece
        rank, world, slots = self.rank, self.world, counted_slots(piece.rows)
        few = self.drops and len(slots) < world
        over = len(slots) if few else len(slots) % world if self.even else 0
        self.left_out += over
        if few and over:  # a batch of skipped rows only is delivered to count them
            return None
        # The end of each counted slot; failed slots that it replaces precede it, in the same slice.
        ends = [0, *(slots + 1).tolist()]
        low, high = (ends[(len(slots) - over) * each // world] for each in (rank, rank + 1))
        mine = piece.rows.slice(low, high if rank + 1 < world or over else len(piece.rows))
        return Piece(mine, piece.at, piece.skip, True, piece.ends_window, piece.unit_key)


def counted_slots(rows: Rows) -> Index:
    """Return the slots that count toward a batch's size: all except failed rows that the next row replaces."""
    counted = rows.counted()
    return np.arange(len(rows)) if counted is None else np.flatnonzero(counted)


class GroupStage(DerivedStream):
    """Runs a kernel on groups of exactly ``size`` rows, and outputs single rows; implements ``map_batches(size=n)``.

    Groups count from the epoch's beginning, so they are equal on all ranks.
    """

    def __init__(self, groups: Stream, rows: Stream, size: int, program: Callable[[], Program], tasks: Tasks) -> None:
        super().__init__(StageStream(groups, program, True, False, tasks))
        self._rows, self._size = rows, size

    @property
    def count(self) -> Count:  # type: ignore[override]
        return self._rows.count

    def seek(self, unit: int, lap: int = 0) -> Position:
        if self._rows.count is None:  # a group may have more than ``size`` slots, since failed rows keep theirs
            return [self.start(), unit]
        at, _ = self.source.seek(unit // self._size, lap)
        return [at, unit % self._size]

    def open_at(self, at: At, lap: int) -> Flow:
        flow = self.source.open([at, 0], lap)
        rows = converted(flow.pull, lambda piece: Piece(piece.rows, piece.at, 0, False, piece.ends_window))
        return GeneratorFlow(rows, flow)


# ---- windows, and the rest of a stream -------------------------------------------------------------------------------


class WindowStream(DerivedStream):
    """Cuts a stream without windows into windows of ``size`` units."""

    def __init__(self, source: Stream, size: int) -> None:
        super().__init__(source)
        self._size = size

    def start(self) -> At:
        return [[self.source.start(), 0], 0]

    def seek(self, unit: int, lap: int = 0) -> Position:
        return [[self.source.seek(unit, lap), unit % self._size], 0]

    def seek_window(self, unit: int, lap: int = 0) -> tuple[Position, int]:
        first = unit - unit % self._size
        return self.seek(first, lap), first

    def fits(self, at: At) -> bool:
        return is_list(at, 2) and self.source.fits_position(at[0]) and is_count(at[1]) and at[1] < self._size

    def open_at(self, at: At, lap: int) -> Flow:
        source = self.source.open(at[0], lap)
        return GeneratorFlow(self._windows(source, at[1]), source)

    def _windows(self, source: Flow, inside: int) -> Pieces:
        wait = yield PENDING
        while (piece := source.pull(wait)) is not None:
            if piece is PENDING:
                wait = yield PENDING
                continue
            start = 0
            while start < piece.units:
                stop = min(start + self._size - inside, piece.units)
                at, inside = [piece.position(start), inside], (inside + stop - start) % self._size
                wait = yield Piece(piece.slice(start, stop).rows, at, 0, piece.batch, inside == 0, piece.key)
                start = stop
            del piece


class RestStream(DerivedStream):
    """Delivers the remaining units of a stream whose count is known, in order.

    ``at`` is [a unit's number among the remaining units, its position in ``source`` or None].

    Args:
        source: the complete stream.
        left: intervals of the remaining unit numbers; a stop of None means the end of the stream.
    """

    def __init__(self, source: Stream, left: Sequence[Sequence[int | None]]) -> None:
        super().__init__(source)
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
        flow: Flow | None = None
        left: float = 0  # units of the current interval that were not pulled yet
        room = math.inf

        def pieces() -> Pieces:
            nonlocal flow, left
            number, below = at
            wait = yield PENDING
            for low, high in self.numbers.spans(number, math.inf):
                with closing(self.source.open(below or self.source.seek(low, lap), lap)) as flow:
                    below, left = None, high - low
                    if min(left, room) != math.inf:
                        flow.limit(int(min(left, room)))
                    while left and (piece := flow.pull(wait)) is not None:
                        if piece is PENDING:
                            wait = yield PENDING
                            continue
                        units = int(min(piece.units, left))
                        place = [number, piece.position()]
                        number += units
                        left -= units
                        wait = yield Piece(piece.slice(0, units).rows, place, 0, piece.batch)
                        del piece
                if left:  # the source ended with fewer units than its count
                    return

        def limit(units: int) -> None:
            nonlocal room
            room = units
            if flow is not None:
                flow.limit(int(min(units, left)))

        return GeneratorFlow(pieces(), limit=limit)
