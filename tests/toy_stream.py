"""A stream over rows in memory, cut at random and late at random; and what every stream operator must hold."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from cedar.core.block import Block, Skipped
from cedar.core.boundary import as_column
from cedar.core.cursor import Keys
from cedar.core.stream import PENDING, At, Count, Flow, Piece, Position, Pulled, Rows, Stream, concat_rows
from cedar.operators.base import StreamContext, StreamOperator

Unit = tuple[Any, Any]  # (key, row as a dict or None if skipped); of a batch, tuples of these

REASON = Skipped(0, "toy", "broken")


def block_of(columns: dict[str, Any], first: int = 0, file: int = 0, dead: Sequence[int] = (), lap: int = 0) -> Block:
    """A block whose row keys count from ``first``; ``columns`` have an entry per slot, those of dead slots go."""
    slots = len(next(iter(columns.values())))
    alive = np.array([i for i in range(slots) if i not in set(dead)], dtype=np.int64)
    kept = {}
    for name, values in columns.items():
        column = values if isinstance(values, np.ndarray) else as_column(_arrow(values))
        kept[name] = column[alive] if isinstance(column, np.ndarray) else column.take(_arrow(alive))
    return Block(kept, Keys(np.arange(first, first + slots), file=file, repeat=lap), dict.fromkeys(dead, REASON))


def _arrow(values: Any) -> Any:
    import pyarrow as pa

    if isinstance(values, pa.Array):
        return values
    return pa.array(values) if len(values) else pa.array([], pa.int64())


class ListStream(Stream):
    """Rows in memory.

    Pieces are cut at random, again every time the stream is opened; ``late`` is how often a pull has to wait. With
    ``sizes``, the units are batches of so many rows. ``marks`` are the unit numbers after which a window ends.
    """

    def __init__(
        self,
        columns: dict[str, Any],
        *,
        seed: int = 0,
        file: int = 0,
        dead: Sequence[int] = (),
        sizes: Sequence[int] | None = None,
        marks: Sequence[int] = (),
        known: bool = True,
        late: float = 0.3,
        longest: int = 5,
    ) -> None:
        self._columns = columns
        self._file = file
        self._dead = dead
        self._random = random.Random(seed)
        self._stride = self._random.randint(1, 6)  # `at` is every so many units
        rows = len(next(iter(columns.values())))
        self.starts = list(range(rows + 1)) if sizes is None else [0, *np.cumsum(np.array(sizes, dtype=int)).tolist()]
        assert self.starts[-1] == rows
        self.units = len(self.starts) - 1
        self.batch = sizes is not None
        self.marks = {m for m in marks if m < self.units}
        self.count: Count = self.units if known else None
        self.late = late
        self.longest = longest
        self.open_flows = 0

    def types(self) -> dict[str, Any]:
        return self.block(0).types

    def block(self, lap: int) -> Block:
        return block_of(self._columns, file=self._file, dead=self._dead, lap=lap)

    def start(self) -> At:
        return {"unit": 0}

    def seek(self, unit: int, lap: int = 0) -> Position:
        if self.count is None:
            return [self.start(), unit]
        return self.at(unit)

    def at(self, unit: int) -> Position:
        first = unit // self._stride * self._stride
        return [{"unit": first}, unit - first]

    def open_at(self, at: At, lap: int) -> Flow:
        return _ListFlow(self, at["unit"], lap, random.Random(self._random.random()))


class _ListFlow(Flow):
    def __init__(self, stream: ListStream, unit: int, lap: int, rng: random.Random) -> None:
        self._stream = stream
        self._unit = unit
        self._block = stream.block(lap)
        self._rng = rng
        self._closed = False
        stream.open_flows += 1

    def pull(self, wait: bool) -> Pulled:
        assert not self._closed, "pulled after close"
        if not wait and self._rng.random() < self._stream.late:
            return PENDING
        at, skip = self._stream.at(self._unit)
        if self._unit < self._stream.units and self._rng.random() < 0.1:
            return Piece(Rows.of(self._block).slice(0, 0), at, skip)
        if self._unit >= self._stream.units:
            return None
        stop = self._unit + 1
        if not self._stream.batch:
            longest = self._unit + self._rng.randint(1, self._stream.longest)
            while stop < min(longest, self._stream.units) and stop - 1 not in self._stream.marks:
                stop += 1
        piece = Piece(self._rows(stop), at, skip, self._stream.batch, stop - 1 in self._stream.marks)
        self._unit = stop
        return piece

    def _rows(self, stop: int) -> Rows:
        low, high = self._stream.starts[self._unit], self._stream.starts[stop]
        rows = Rows.of(self._block).slice(low, high)
        how = self._rng.random()
        if how < 0.3:
            return Rows.of(rows.gather())
        if how < 0.6 and high - low > 1:
            middle = self._rng.randint(1, high - low - 1)
            halves = [rows.slice(0, middle), rows.slice(middle, high - low)]
            return concat_rows([Rows.of(half.gather()) for half in halves])
        return rows

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._stream.open_flows -= 1


class LateFuture:
    """A future that is done only some time after it was asked, or when it is waited for."""

    def __init__(self, run: Any, rng: random.Random) -> None:
        self._run = run
        self._rng = rng
        self._future: Future[Any] = Future()

    def done(self) -> bool:
        return self._future.done() or self._rng.random() < 0.5

    def result(self) -> Any:
        if not self._future.done():
            try:
                self._future.set_result(self._run())
            except Exception as error:  # noqa: BLE001 - as an executor does
                self._future.set_exception(error)
        return self._future.result()

    def cancel(self) -> bool:
        return self._future.cancel()


def context(
    types: dict[str, Any] | None = None, *, seed: int = 0, epoch: int = 0, rng: random.Random | None = None
) -> StreamContext:
    rng = rng or random.Random(0)
    return StreamContext(
        seed, epoch, 0, None, lambda fn, *args: LateFuture(lambda: fn(*args), rng), 100.0, lambda: dict(types or {})
    )


def unit_of(block: Block) -> list[Unit]:
    """The slots of a block in comparable form."""
    keys = block.keys
    live = dict(zip(block.live_slots().tolist(), block.rows(), strict=True))

    def part(value: Any, i: int) -> int:
        return value if isinstance(value, int) else int(value[i])

    return [
        (
            (part(keys.branch, i), part(keys.repeat, i), part(keys.file, i), int(keys.row[i]), part(keys.sub, i)),
            {n: _plain(v) for n, v in live[i].items()} if i in live else None,
        )
        for i in range(block.slots)
    ]


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def drain(flow: Flow, rng: random.Random, limit: float = math.inf) -> tuple[list[Any], list[Position], list[int]]:
    """The units of a flow, where each can be opened, and the unit numbers after which a window ends."""
    units: list[Any] = []
    positions: list[Position] = []
    marks: list[int] = []
    late = 0
    while len(units) < limit:
        piece = flow.pull(wait := rng.random() < 0.5)
        if piece is None:
            assert flow.pull(True) is None
            break
        if piece is PENDING:
            assert not wait
            late += 1
            assert late < 10_000, "the flow is always late"
            continue
        assert isinstance(piece, Piece)
        late = 0
        positions += [piece.position(i) for i in range(piece.units)]
        found = unit_of(piece.rows.gather())
        units += [tuple(found)] if piece.batch else found
        if piece.ends_window and units and (not marks or marks[-1] != len(units) - 1):
            marks.append(len(units) - 1)
    flow.close()
    limit = int(min(limit, len(units)))
    return units[:limit], positions[:limit], [mark for mark in marks if mark < limit]


def check(
    operator: StreamOperator,
    inputs: Sequence[ListStream],
    *,
    seed: int = 0,
    limit: int = 200,
    lap: int = 0,
    opens: int = 6,
) -> list[Any]:
    """What every stream operator must hold, whatever the cuts; returns its units.

    The rest from any position, and from any ``seek`` where the count is known, is the rest of the whole.
    """
    rng = random.Random(seed)
    made = context(inputs[0].types() if inputs else None, seed=7, rng=rng)
    stream = operator.stream(tuple(inputs), made)
    whole, positions, marks = drain(stream.open([stream.start(), 0], lap), rng, limit)
    if stream.count is not None:
        assert stream.count == len(whole) or (len(whole) >= limit and stream.count >= len(whole))
    ended = len(whole) < limit
    again, _, same_marks = drain(stream.open([stream.start(), 0], lap), rng, limit)
    assert (again, same_marks) == (whole, marks)
    for unit in rng.sample(range(len(whole)), min(opens, len(whole))):
        position = json.loads(json.dumps(positions[unit]))
        rest, _, _ = drain(stream.open(position, lap), rng, limit - unit)
        assert rest[: len(whole) - unit] == whole[unit : unit + len(rest)], (unit, position)
        assert not ended or len(rest) == len(whole) - unit
    ends = [len(whole), len(whole) + 3] if ended and stream.count is not None else []
    for unit in [*rng.sample(range(len(whole)), min(opens, len(whole))), *ends]:
        position = json.loads(json.dumps(stream.seek(unit, lap)))
        rest, _, _ = drain(stream.open(position, lap), rng, limit - unit)
        assert rest[: max(0, len(whole) - unit)] == whole[unit : unit + len(rest)], (unit, position)
        assert not ended or len(rest) == max(0, len(whole) - unit)
    assert all(source.open_flows == 0 for source in inputs)
    return whole


def values(units: Sequence[Any], name: str = "x") -> list[Any]:
    """One column of units that are rows; None if a row was skipped."""
    return [row and row[name] for _, row in units]
