"""AssignedStream: the units of a stream that are assigned to one rank."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from cedar.core.block import Block
from cedar.core.cursor import no_keys
from cedar.core.stream import (
    PENDING,
    At,
    Flow,
    GeneratorFlow,
    Piece,
    Pieces,
    Position,
    Pulled,
    Rows,
    Stream,
    concat_rows,
    is_count,
    is_list,
)
from cedar.engine.streams.deal import EVERYTHING, End, Numbers, assigned_runs, epoch_end, remaining
from cedar.engine.streams.derived import counted_slots

ROWS, BATCHES = "row(s)", "batch(es)"


@dataclass(frozen=True)
class Share:
    """Defines which units are assigned to a rank.

    Args:
        rank, world: this rank's number, and the number of ranks.
        chunk: minimum number of units in a contiguous run.
        last: how the epoch ends; see ``deal_mode``.
        history: how many units the ranks of earlier worlds had received when the epoch was redistributed.
        turns: assign single units to ranks in turn even if counts are known, because an operator below moves rows
            between the units of a step, or depends on the step.
        may_end_apart: one rank may receive one unit more than another, because other code makes ranks end together.
    """

    rank: int = 0
    world: int = 1
    chunk: int = 1
    last: str | None = "keep"
    history: tuple[Any, ...] = ()
    turns: bool = False
    may_end_apart: bool = False


class AssignedStream(Stream):
    """The units of ``source`` that are assigned to a rank.

    ``at`` is [units delivered, a position in ``source``, the number of the unit there]. The latter two are None for
    contiguous runs, where units are found by their number. Only if rows are delivered as they finish, a run has a
    position in ``source``.

    Args:
        alone: the stream is a lane, whose length is not needed.
    """

    def __init__(self, source: Stream, share: Share, alone: bool = False) -> None:
        self.source = source
        self.share = share
        self._world, self._rank = share.world, share.rank
        self.whole = share.world == 1 and not share.history  # whether a single rank receives all units of the epoch
        self._numbers = Numbers(remaining(source.count, list(share.history), share.last, source.rows_of))
        self._known = source.count is not None
        self.in_runs = self._known and not share.turns  # whether ranks receive contiguous runs of units
        self._left_out: Counter[str] = Counter()
        self.cuts: Sequence[Any] = ()  # batching streams below, which also count the rows that they leave out
        self.end = End(0, [], 0)
        if finite := self._numbers.total != math.inf:
            self.end = epoch_end(self._numbers, self._world, share.last, source.rows_of)
        if self._known and not alone:
            self.count = self.end.units(share.rank, share.last) if finite else math.inf

    @property
    def left_out(self) -> Counter[str]:
        """Number of rows, or of batches of unknown size, that no rank received; counted when a flow ends."""
        return self._left_out + Counter({ROWS: sum(cut.left_out for cut in self.cuts)})

    def leave_out(self, units: Iterable[range | None], given: int = 0) -> None:
        """Count the rows of units that do not fill a step, minus ``given`` rows of them that were delivered."""
        for rows in units:
            self._left_out[BATCHES if rows is None else ROWS] += 1 if rows is None else len(rows)
        self._left_out[ROWS] -= given

    @property
    def reopens_quickly(self) -> bool:
        return self.source.reopens_quickly

    def start(self) -> At:
        return [0, None, None]

    def fits(self, at: At) -> bool:
        return (
            is_list(at, 3)
            and is_count(at[0])
            and (at[1] is None or self.source.fits_position(at[1]))
            and (at[2] is None or is_count(at[2]))
        )

    def open_at(self, at: At, lap: int) -> Flow:
        taken, below, number = at
        if taken == EVERYTHING:  # all units were delivered, so only padding follows
            return GeneratorFlow(_endless_padding())
        if self.in_runs:
            return GeneratorFlow(self._in_runs(taken, below, lap))
        if below is None and self._known and taken and self._numbers.total:
            number = self._numbers.number(int(min(taken * self._world, self._numbers.total - 1)))
            below = self.source.seek(number, lap)
        source = self.source.open([self.source.start(), 0] if below is None else below, lap)
        if self.whole:
            return _WholeFlow(source, taken)
        return _TurnsFlow(self, source, taken, number or 0)

    def _in_runs(self, taken: int, below: Position | None, lap: int) -> Pieces:
        """Yield contiguous runs of units, then this rank's part of the rows that do not fill a batch on every rank."""
        wait = yield PENDING
        for span in self.spans(taken):
            if span is None:
                taken += 1
                wait = yield _padding(taken - 1)
                continue
            with closing(self.source.open(below or self.source.seek(span[0], lap), lap)) as flow:
                below, left = None, span[1] - span[0]
                flow.limit(left)
                while left and (piece := flow.pull(wait)) is not None:
                    if piece is PENDING:
                        wait = yield PENDING
                        continue
                    piece = piece.slice(0, left)
                    left -= piece.units
                    at, end = [taken, None if piece.end is None else piece.position(), None], None
                    taken += piece.units
                    if piece.end is not None:
                        end = [[taken, piece.end if left else None, None], 0]
                    wait = yield Piece(piece.rows, at, 0, piece.batch, end=end)
                    del piece
        parts = []
        for rows in self._last_rows(taken):
            with closing(self.source.cut(rows)) as flow:
                while (piece := flow.pull(wait)) is PENDING:
                    wait = yield PENDING
                parts += [] if piece is None else [piece.rows]
        if parts:
            yield Piece(concat_rows(parts), [taken, None, None], 0, batch=True)

    def _last_rows(self, taken: int) -> list[range]:
        """Return the rows of this rank's last batch, and count the rows that are left out."""
        end, share = self.end, self.share
        rest = end.rest if share.last in (None, "drop") else []
        after = self.source.rows_of(int(self.source.count or 0))  # rows at the end that do not fill a batch
        self.leave_out([*rest, after or range(0)], end.rows * share.world)
        return end.last_rows(share.rank) if share.last is None and end.rows and taken == end.each else []

    def spans(self, taken: int) -> Any:
        """Yield runs of unit numbers from this rank's unit ``taken`` on; None means one padding unit."""
        total = self._numbers.total
        if self.whole:  # a single run, since splits at the boundary of two runs would be read twice
            if taken < total:
                yield taken, total
            return
        if self.share.last is None and total != math.inf:
            total = self.end.each * self._world
        for low, high in assigned_runs(total, self._world, self._rank, self.share.chunk, self.share.last):
            skipped = min(taken, high - low)
            taken -= skipped
            low += skipped
            stop = min(high, total)
            if low < stop:
                yield from self._numbers.spans(low, int(stop))
            if max(low, stop) < high:
                yield None

    def owner(self, number: int) -> tuple[int, int] | None:
        """Return (round, rank) of unit ``number`` if units are assigned in turn; None if it was already delivered."""
        among = self._numbers.rank_of(number)
        return None if among is None else divmod(among, self._world)


def _padding(taken: int) -> Piece:
    """Return a batch without rows, which a later step fills with padding for ``last="pad"``."""
    return Piece(Rows.of(Block({}, no_keys(), aligned=False)), [taken, None, None], 0, batch=True)


def only_skipped(unit: Piece) -> bool:
    """Whether a batch counts no rows, because all were skipped and the epoch ended before they could be replaced."""
    counted = unit.rows.counted() if unit.batch else None
    return counted is not None and not counted.any()


def _endless_padding() -> Pieces:
    yield PENDING
    while True:
        yield _padding(EVERYTHING)


class _WholeFlow(Flow):
    """Delivers all units, for a single rank."""

    def __init__(self, source: Flow, taken: int) -> None:
        self._source, self._taken = source, taken

    def pull(self, wait: bool) -> Pulled:
        while isinstance(piece := self._source.pull(wait), Piece):
            if piece.units:
                at = [self._taken, [piece.at, piece.skip], self._taken]
                self._taken += piece.units
                end = None if piece.end is None else [[self._taken, piece.end, self._taken], 0]
                return Piece(piece.rows, at, 0, piece.batch, piece.ends_window, keeps=piece.keeps, end=end)
            del piece
        return piece

    def close(self) -> None:
        self._source.close()


class _TurnsFlow(Flow):
    """Delivers every ``world``-th unit: all units below are computed, and those of other ranks are dropped."""

    def __init__(self, stream: AssignedStream, source: Flow, taken: int, number: int) -> None:
        self._stream = stream
        self._flow = source
        self._taken = taken
        self._number = number
        self._ready: deque[Piece] = deque()
        self._held: deque[Piece] = deque()  # this rank's units, not delivered until their round is known to be full
        self._round: list[Piece] = []  # the current round's units for all ranks
        self._shares = stream.share.last is None and stream.share.world > 1 and not stream.share.may_end_apart
        self._skipped: list[Piece] = []  # batches without rows, delivered at the end to count their skipped rows
        self._latest: tuple[int, int] | None = None  # (round, rank) of the latest unit not delivered before this run
        self._ended = False
        self._strict = stream.share.last != "keep" and stream.share.world > 1 and not stream.share.may_end_apart

    def pull(self, wait: bool) -> Pulled:
        while not self._ready:
            if self._ended:
                return None
            piece = self._flow.pull(wait)
            if piece is PENDING:
                return PENDING
            if isinstance(piece, Piece):
                self._assign(piece)
            else:
                self._end()
        return self._ready.popleft()

    def _assign(self, piece: Piece) -> None:
        for unit in range(piece.units):
            number = self._number
            owner = self._stream.owner(number)
            one = piece.slice(unit, unit + 1)
            if only_skipped(one):  # no rank receives the batch, but the rank in turn must count its skipped rows
                if owner is not None and owner[1] == self._stream.share.rank and owner[0] >= self._taken:
                    self._skipped.append(Piece(one.rows, [owner[0], one.position(), number], 0, True, False))
                continue
            self._number += 1
            if owner is None:
                continue
            self._latest = owner
            if owner[0] < self._taken:
                continue
            turn, rank = owner
            mine = Piece(one.rows, [turn, one.position(), number], 0, one.batch, False)
            if self._shares and self._round and self._round[0].at[0] < turn:  # so the previous round was full
                self._release(turn - 1)
            if self._strict:
                self._round.append(mine)
            if rank == self._stream.share.rank:
                self._held.append(mine)
            if not self._strict or (rank == self._stream.share.world - 1 and not self._shares):
                self._release(turn)

    def _release(self, turn: int) -> None:
        self._round.clear()
        while self._held and self._held[0].at[0] <= turn:
            self._ready.append(self._held.popleft())
            self._taken = self._ready[-1].at[0] + 1

    def _end(self) -> None:
        self._ended = True
        share, last = self._stream.share, self._round
        sizes = [len(counted_slots(piece.rows)) for piece in last]
        if self._shares and len(last) == share.world and sizes[-1] >= sizes[0]:
            self._release(last[0].at[0])
        elif self._shares and last:
            self._share(last, sum(sizes) // share.world)
        elif share.last == "drop" and last and last[0].batch:
            self._stream.leave_out(map(range, sizes))
        owner = self._latest  # some ranks, but not all, received a unit of an open round
        in_open_round = owner is not None and owner[1] != share.world - 1 and owner[0] >= self._taken
        if share.last == "pad" and self._strict and in_open_round:
            if self._held:
                self._release(self._held[-1].at[0])
            else:
                self._ready.append(_padding(self._taken))
                self._taken += 1
        self._ready.extend(self._skipped)

    def _share(self, last: list[Piece], rows: int) -> None:
        """Cut the units of the last round into one batch of ``rows`` rows for each rank.

        Rows are assigned in turn, so that no rank receives all rows of a batch of long rows, which has few rows.
        """
        share, joined = self._stream.share, concat_rows([piece.rows for piece in last])
        counted = counted_slots(joined)
        self._stream.leave_out([range(len(counted) - rows * share.world)])
        if rows:
            replaced = np.setdiff1d(np.arange(len(joined)), counted)[share.rank :: share.world]  # replaced failed rows
            mine = np.sort(np.append(counted[share.rank : rows * share.world : share.world], replaced))
            self._ready.append(Piece(joined.take(mine).compact(), last[0].at, 0, batch=True))

    def close(self) -> None:
        self._flow.close()
