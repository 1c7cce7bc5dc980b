"""shuffle: sorts the rows of each window by a hash of (seed, epoch, row key).

Because of this order, filters and projections commute with a shuffle. If the input comes directly from sources, splits
are also shuffled globally. Otherwise, windows are consecutive parts of the input stream.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from cedar.core.block import Block, concat_blocks, python_values
from cedar.core.columns import Index, concat, nbytes_each
from cedar.core.cursor import concat_keys, hash_ints, no_keys
from cedar.core.errors import check_names, invalid_call, require_columns
from cedar.core.groups import GroupColumn, concat_each, plain
from cedar.core.limits import as_int, parse_bytes
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
    concat_rows,
)
from cedar.operators.base import Effects, Mixing, Ordering, Resizable, RowUse, Schema, StreamContext, StreamOperator
from cedar.operators.split_rows import hashed_text, times_as_integers
from cedar.operators.take import whole, whole_seed

_GROUP_BYTES = 16 << 20  # small blocks are concatenated up to this size, so that batches need few blocks
_EMPTY_BLOCK = Block({}, no_keys())
_AHEAD_BYTES = 64 << 20  # after a smaller window, the next one is prefetched while it is consumed


@dataclass(frozen=True)
class Shuffle(StreamOperator, Resizable):
    """Shuffles splits globally, and rows within windows whose size is estimated from source metadata."""

    seed: int = 0
    window: str | int = "256MiB"
    by: str | None = None
    interleave: int = 1
    name = "shuffle"
    group_use = "kept"

    def __post_init__(self) -> None:
        check_names("shuffle(by)", *([] if self.by is None else [self.by]))
        object.__setattr__(self, "seed", whole_seed(self.seed, "shuffle"))
        object.__setattr__(self, "window", as_int(self.window))
        object.__setattr__(self, "interleave", whole(self.interleave, "shuffle(interleave)", least=1))
        self.window_rows  # noqa: B018 - checks the window
        self.window_bytes  # noqa: B018
        if self.interleave > 1 and self.by is None:
            raise invalid_call(
                f"shuffle(interleave={self.interleave}): interleave is a number of groups, and needs by="
            )

    @property
    def window_rows(self) -> int | None:
        if isinstance(self.window, str):
            return None
        if isinstance(self.window, bool) or not isinstance(self.window, int) or self.window < 1:
            raise invalid_call(
                f"shuffle(window={self.window!r}): give bytes as a string, or a number of rows, at least 1",
                fix='such as window="64MiB" or window=10_000',
            )
        return self.window

    @property
    def window_bytes(self) -> int | None:
        return parse_bytes(self.window, "window") if isinstance(self.window, str) else None

    @property
    def ordering(self) -> Ordering:
        mixing = Mixing(self.window_rows, self.window_bytes, self.seed, self.by, self.interleave)
        return Ordering(mixing, windowed=True, moves_rows=True, reports_splits_started=True)

    def resized(self, few: Callable[[int, int, int], int]) -> Shuffle:
        return replace(self, window=few(self.window_rows or 1 << 20, 17, 5))

    def label(self) -> str:
        by = f", by={self.by!r}" if self.by else ""
        return f"shuffle(seed={self.seed}, window={self.window!r}{by})"

    def effects(self) -> Effects:
        return Effects(frozenset() if self.by is None else frozenset({self.by}), frozenset(), rows="stream")

    def parameters(self) -> dict[str, Any]:
        return {"seed": self.seed, "window": self.window, "by": self.by, "interleave": self.interleave}

    def schema(self, *inputs: Schema) -> Schema:
        require_columns([] if self.by is None else [self.by], inputs[0], f"shuffle(by={self.by!r})")
        return inputs[0]

    @property
    def row_use(self) -> RowUse:
        counted = self.by is not None and self.interleave > 1
        return RowUse(counts="deals rows out in turns, and counts them" if counted else None, lanes=True)

    def stream(self, inputs: tuple[Stream, ...], context: StreamContext) -> Stream:
        return ShuffleStream(inputs[0], self, context)


class ShuffleStream(Stream):
    """Collects each window, sorts its row keys by their hashes, and delivers the rows in that order."""

    def __init__(self, source: Stream, operator: Shuffle, context: StreamContext) -> None:
        self._source = source
        self.operator = operator
        self.context = context
        self.seed = context.hash_seed(operator.seed)

    @property
    def count(self) -> Count:  # type: ignore[override]
        return self._source.count

    def start(self) -> At:
        return [self._source.start(), 0]

    def seek(self, unit: int, lap: int = 0) -> Position:
        if self._source.count is None:
            return [self.start(), unit]
        position, first = self._source.seek_window(unit, lap)
        return [position, unit - first]

    def fits(self, at: At) -> bool:
        return self._source.fits_position(at)

    def open_at(self, at: At, lap: int) -> Flow:
        source = self._source.open(at, lap)
        return GeneratorFlow(self._windows(source), source)

    def _windows(self, source: Flow) -> Pieces:
        """Yield each window in one piece, or batch by batch if the units are batches."""
        ended = False
        wait = yield PENDING
        while not ended:
            at: Position | None = None
            keeps, complete = None, False
            batches: deque[Piece] = deque()
            group: list[Rows] = []
            group_bytes = 0
            gathered: list[Any] = []  # futures that return a Block
            while not ended and not complete:
                piece = source.pull(wait)
                if piece is PENDING:
                    wait = yield PENDING
                elif piece is None:
                    ended = True
                else:
                    at, keeps = (piece.position(), piece.keeps) if at is None else (at, keeps)
                    complete = piece.ends_window
                    if piece.units and piece.batch:
                        batches.append(piece)
                    elif piece.units:
                        group.append(piece.rows)
                        group_bytes += piece.rows.nbytes
                del piece  # otherwise its blocks stay in memory
                if group and (ended or complete or group_bytes >= _GROUP_BYTES):
                    gathered.append(self.context.submit(_gather, group))
                    group, group_bytes = [], 0
            if batches:
                order = np.argsort(concat_keys([batch.unit_key for batch in batches]).hash(self.seed), kind="stable")
                batches = deque(batches[unit] for unit in order.tolist())
                for skip in range(len(order)):
                    wait = yield replace(batches.popleft(), at=at, skip=skip, ends_window=not batches)
            elif gathered:
                wait = yield from self._window(gathered, at, keeps, wait)

    def _window(self, gathered: list[Any], at: At, keeps: int | None, wait: bool) -> Generator[Pulled, bool, bool]:
        """Yield a window once its rows are sorted; return the latest ``wait``."""
        while not wait and not all(future.done() for future in gathered):
            wait = yield PENDING
        blocks = [future.result() for future in gathered]
        gathered.clear()
        plan = self.context.submit(_plan, self.operator, self.seed, blocks)
        del blocks
        while not wait and not plan.done():
            wait = yield PENDING
        nbytes = plan.result().nbytes
        wait = yield Piece(plan.result(), at, ends_window=True, keeps=keeps)
        del plan  # and with it the window's blocks
        while not wait and nbytes > _AHEAD_BYTES:
            wait = yield PENDING
        return wait


def _gather(holder: list[Rows]) -> Block:
    rows = concat_rows(holder)
    holder.clear()
    block = rows.gather()
    del rows
    if block.nbytes > _GROUP_BYTES // 2:
        pa.default_memory_pool().release_unused()  # return the memory of concatenated blocks to the system
    return block


def _plan(operator: Shuffle, seed: int, holder: list[Block]) -> Rows:
    blocks = _join_blocks(holder)
    if operator.by is None:
        order = np.argsort(concat_keys([b.keys for b in blocks]).hash(seed), kind="stable").astype(np.int64)
    else:
        values = [value for block in blocks for value in _group_values(block, operator.by)]
        order = group_order(values, seed, operator.interleave)
    if len(blocks) == 1:
        return Rows((blocks[0],), order)
    ends = np.cumsum([b.slots for b in blocks])
    part = np.searchsorted(ends, order, side="right").astype(np.int64)
    starts = np.concatenate([[0], ends[:-1]])
    return Rows(tuple(blocks), order - starts[part], part)


def _join_blocks(holder: list[Block]) -> list[Block]:
    """Concatenate blocks into fewer ones, so that each batch is gathered from few blocks.

    Columns are concatenated one after the other, so that only about one column is in memory twice. Columns of the same
    deduplicated group are concatenated together.
    """
    if len(holder) == 1:
        return [holder.pop()]
    sizes = [nbytes_each([block.columns[name] for name in holder[0].columns]) for block in holder]
    widest = max(map(sum, zip(*sizes, strict=True)), default=0)
    count = min(len(holder), -(-widest // _GROUP_BYTES) or 1)
    ends = [round(len(holder) * (i + 1) / count) for i in range(count)]
    blocks = []
    for start, stop in pairwise((0, *ends)):
        parts = holder[start:stop]
        holder[start:stop] = [_EMPTY_BLOCK] * len(parts)
        blocks.append(_joined(parts))
    return blocks


def _joined(parts: list[Block]) -> Block:
    """Concatenate blocks like ``concat_blocks``, but release each column of ``parts`` once it is concatenated."""
    if len(parts) == 1:
        return parts[0]
    whole = concat_blocks([part.only_columns({}) for part in parts])
    by_part = [dict(part.columns) for part in parts]
    parts.clear()
    names = list(by_part[0])
    alone = [name for name in names if not any(isinstance(columns[name], GroupColumn) for columns in by_part)]
    done = {name: concat([columns.pop(name) for columns in by_part]) for name in alone}
    done |= concat_each(by_part)  # columns of the same deduplicated group stay in one group
    return whole.only_columns({name: done[name] for name in names})


def _group_values(block: Block, by: str) -> list[Any]:
    """Return the value of ``by`` in each slot; None if the row was skipped.

    Lists and objects are compared by their repr, since equal objects may have different ones.
    """
    require_columns([by], block.columns, "shuffle(by=...)")
    column = times_as_integers(plain(block.columns[by]))
    flat = isinstance(column, pa.Array) and not pa.types.is_nested(column.type)
    values: list[Any] = [None] * block.slots
    for slot, value in zip(block.live_slots().tolist(), python_values(column), strict=True):
        if not flat and value is not None:
            value = hashed_text(value)
        values[slot] = np.nan if value != value else value  # noqa: PLR0124 - one object, as two NaNs are unequal
    return values


def group_order(values: list[Any], seed: int, interleave: int) -> Index:
    """Return an order that sorts groups of equal values by hash. The rows of a group stay together and in order."""
    numbers: dict[Any, int] = {}
    codes = np.fromiter((numbers.setdefault(v, len(numbers)) for v in values), dtype=np.int64, count=len(values))
    digests = (hashlib.blake2b(hashed_text(value).encode(), digest_size=8).digest() for value in numbers)
    each = (
        hash_ints(seed, int.from_bytes(digest, "little")) for digest in digests
    )  # so filters commute with a shuffle
    hashes = np.fromiter(each, dtype=np.uint64, count=len(numbers))
    rank = np.empty(len(hashes), dtype=np.int64)
    rank[np.argsort(hashes, kind="stable")] = np.arange(len(hashes))
    group = rank[codes]
    order = np.argsort(group, kind="stable").astype(np.int64)
    return order if interleave == 1 else _interleaved(order, group[order], interleave)


def _interleaved(order: Index, group: Index, lanes: int) -> Index:
    """Assign group g to lane g % lanes, and interleave the rows of the lanes."""
    lane = group % lanes
    turn = np.empty(len(order), dtype=np.int64)
    for number in range(lanes):
        mine = np.flatnonzero(lane == number)
        turn[mine] = np.arange(len(mine))
    return order[np.lexsort((lane, turn))]
