"""bucket_by_length: group rows of similar length into batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cedar.core.block import Block
from cedar.core.columns import UNKNOWN, Column, ColumnType, Index, TensorType
from cedar.core.errors import PipelineError, RowError, Site, check_names, invalid_call, require_columns
from cedar.core.groups import plain
from cedar.core.stream import (
    PENDING,
    At,
    Flow,
    GeneratorFlow,
    Piece,
    Pieces,
    Rows,
    Stream,
    concat_rows,
    is_count,
    is_list,
)
from cedar.operators.base import Effects, RowUse, Schema, StreamContext, StreamOperator
from cedar.operators.batch import MakesBatches
from cedar.operators.buffers import OrderedTasks, keep_columns, task_per_piece
from cedar.operators.take import whole

_MIN_WAIT = 1 << 15  # rows; see ``BucketByLength.max_wait``
_WAIT = 64  # batches of all buckets together; it must never change, because it affects results


@dataclass(frozen=True)
class BucketByLength(StreamOperator, MakesBatches):
    """Groups rows whose values in ``column`` have similar lengths into batches.

    Bucket i collects lengths from ``boundaries[i - 1]`` to just below ``boundaries[i]``, and delivers a batch whenever
    it has ``batch_sizes[i]`` rows. A bucket whose oldest row has waited for ``max_wait`` later rows delivers a shorter
    batch, so that a resume does not read the rows since then again. At the end, each bucket delivers its remaining rows
    as a shorter batch. A row that an earlier operator skipped counts in the first bucket.

    Args:
        column: the name of a column of lists, strings (measured in characters), bytes, arrays or objects with a length.
        boundaries: the lengths at which the next bucket begins; ascending, above zero.
        batch_sizes: the number of rows per batch for each bucket; one entry more than ``boundaries``.
        local: True gives each rank its own buckets for its own rows.

    Raises:
        PipelineError: boundaries or sizes are invalid, or the column is missing or has no length.
        RowError: while running, a value is missing.

    Examples:
        >>> from cedar.operators.bucket import BucketByLength
        >>> BucketByLength("tokens", (128, 512), (64, 16, 4)).label()
        "bucket_by_length('tokens')"
    """

    column: str
    boundaries: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    local: bool = False
    name: ClassVar[str] = "bucket_by_length"
    last = None
    row_use = RowUse(lanes=True)

    def keeping_rest(self) -> BucketByLength:
        return replace(self, local=True)

    def __post_init__(self) -> None:
        check_names("bucket_by_length", self.column)
        object.__setattr__(self, "boundaries", _as_integers(self.boundaries, "boundaries"))
        object.__setattr__(self, "batch_sizes", _as_integers(self.batch_sizes, "batch_sizes"))
        if any(a >= b for a, b in zip(self.boundaries, self.boundaries[1:], strict=False)):
            raise invalid_call(f"bucket_by_length: the boundaries {list(self.boundaries)} do not ascend")
        if len(self.batch_sizes) != len(self.boundaries) + 1:
            raise invalid_call(
                f"bucket_by_length: {len(self.boundaries)} boundaries make {len(self.boundaries) + 1} buckets,"
                f" but there are {len(self.batch_sizes)} batch sizes",
                fix="give one batch size more than boundaries: the last is for the longest rows",
            )

    def label(self) -> str:
        return f"bucket_by_length({self.column!r})"

    def effects(self) -> Effects:
        return Effects(frozenset({self.column}), frozenset(), rows="stream")

    def parameters(self) -> dict[str, Any]:
        sizes = {"boundaries": list(self.boundaries), "batch_sizes": list(self.batch_sizes)}
        return {"column": self.column, **sizes, "local": self.local}

    def schema(self, *inputs: Schema) -> Schema:
        if inputs[0] is not None:
            require_columns([self.column], inputs[0], "bucket_by_length")
            _check_type(self.column, inputs[0][self.column], None)
        return inputs[0]

    def batched(self, *inputs: bool) -> bool:
        if inputs[0]:
            raise PipelineError(
                "bucket_by_length makes batches, but its input already gives batches", fix="remove the earlier batch()"
            )
        return True

    @property
    def full_sizes(self) -> tuple[int, ...]:
        """See ``MakesBatches``: one for each bucket."""
        return self.batch_sizes

    @property
    def max_rows(self) -> int:
        return max(self.batch_sizes)

    @property
    def max_wait(self) -> int:
        """How many later rows a row waits for at most: 64 times the rows of one batch of each bucket, or 32,768."""
        return max(_MIN_WAIT, _WAIT * sum(self.batch_sizes))

    def stream(self, inputs: tuple[Stream, ...], context: StreamContext) -> Stream:
        return BucketStream(inputs[0], self, context)


def _as_integers(values: Iterable[Any], parameter: str) -> tuple[int, ...]:
    try:
        return tuple(whole(value, f"bucket_by_length({parameter}): an entry", least=1) for value in values)
    except TypeError as error:
        raise invalid_call(f"bucket_by_length({parameter}={values!r})", fix="give a list of integers") from error


def _check_type(name: str, kind: ColumnType, site: Site | None) -> None:
    if isinstance(kind, TensorType) and not kind.shape:
        known = False
    elif isinstance(kind, pa.DataType):
        known = has_length(kind)
    else:
        known = True
    if not known and kind is not UNKNOWN:
        raise PipelineError(
            f"bucket_by_length: column {name!r} is {kind}, which has no length",
            site=site,
            fix="name a column of lists, strings, bytes or arrays",
        )


def row_lengths(rows: Rows, name: str, site: Site | None) -> Index:
    """Return the length of each row's value, int64; -1 for a skipped row."""
    block = rows.gather()
    column = plain(block.columns[name])
    _check_type(name, block.types[name], site)
    lengths = np.full(block.slots, -1, dtype=np.int64)
    if isinstance(column, np.ndarray) and column.dtype != object:
        lengths[block.live_slots()] = column.shape[1]
    else:
        lengths[block.live_slots()] = value_lengths(block, name, column, "bucket_by_length", site)
    return lengths


def value_lengths(
    block: Block, name: str, column: Column, label: str, site: Site | None, size: Callable[[Any], int] = len
) -> npt.NDArray[Any]:
    """Return the length of each list, string (in characters), bytes value or object of a block's column.

    Args:
        column: the column ``name``, without groups.
        label: the name of the operator, for messages.
        size: measures an object.

    Raises:
        RowError: a value is missing or has no length.
    """
    if isinstance(column, pa.Array):
        missing = np.asarray(column.is_null())
    else:
        missing = np.array([not hasattr(value, "__len__") for value in column], dtype=bool)
    if missing.any():
        raise RowError(
            f"{label}: a value of column {name!r} is missing or has no length",
            site=site,
            row=block.live_keys().ref(int(np.argmax(missing))),
            fix=f"fill or filter missing values before {label}()",
        )
    if not isinstance(column, pa.Array):
        return np.array([size(value) for value in column], dtype=np.int64)
    if pa.types.is_large_string(column.type):
        return np.asarray(pc.utf8_length(column))
    measure = pc.binary_length if pa.types.is_large_binary(column.type) else pc.list_value_length
    return np.asarray(measure(column))


def has_length(kind: pa.DataType) -> bool:
    """Return whether the values of an Arrow type have a length."""
    lists = pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(lists or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


class BucketStream(Stream):
    """A position ``at`` is [position of the oldest undelivered row, number of later rows delivered, per bucket]."""

    def __init__(self, source: Stream, operator: BucketByLength, context: StreamContext) -> None:
        self.source = source
        self.operator = operator
        self.context = context

    def start(self) -> At:
        return [[self.source.start(), 0], [0] * len(self.operator.batch_sizes)]

    def fits(self, at: At) -> bool:
        return (
            is_list(at, 2)
            and self.source.fits_position(at[0])
            and is_list(at[1], len(self.operator.batch_sizes))
            and all(map(is_count, at[1]))
        )

    def open_at(self, at: At, lap: int) -> Flow:
        position, given = at
        source = self.source.open(position, lap)
        measured = OrderedTasks(task_per_piece(source, self._measure))
        return GeneratorFlow(self._batches(measured, np.array(given, dtype=np.int64)), measured, source)

    def _measure(self, piece: Piece) -> Any:
        column, site = self.operator.column, self.context.site
        rows = keep_columns(piece.rows, [column], "bucket_by_length", site)
        return self.context.submit(row_lengths, rows, column, site)

    def _batches(self, measured: OrderedTasks[Piece], given: Index) -> Pieces:
        """Yield batches; ``given`` is the number of rows per bucket that were delivered before this flow was opened."""
        buckets = [_LengthBucket(size, self.operator.max_wait) for size in self.operator.batch_sizes]
        skip, seen = given.copy(), np.zeros(len(given), dtype=np.int64)
        ended = False
        wait = yield PENDING
        while not ended:
            pulled = measured.pull(wait)
            full: list[tuple[int, int, int]] = []  # complete batches: the place, the bucket's number, the rows
            if pulled is PENDING:
                wait = yield PENDING
            elif pulled is None:
                ended = True
                full = [(0, number, bucket.waiting) for number, bucket in enumerate(buckets) if bucket.waiting]
            elif pulled[1] is not None:
                numbers = np.searchsorted(np.array(self.operator.boundaries), pulled[1], side="right")
                piece = _BucketedPiece(pulled[0], numbers, seen)
                for number, bucket in enumerate(buckets):
                    slots = np.flatnonzero(numbers == number)[max(0, int(skip[number] - seen[number])) :]
                    full += [(place, number, rows) for place, rows in bucket.add(piece, slots)]
                seen = seen + np.bincount(numbers, minlength=len(buckets))
                del piece
            del pulled
            for _, number, rows in sorted(full):
                at = _position(buckets, given)
                given[number] += rows
                wait = yield Piece(buckets[number].take(rows), at, batch=True)


def _position(buckets: list[_LengthBucket], given: Index) -> At:
    """Return the position of the next batch, where ``given`` rows per bucket were delivered before."""
    waiting = [oldest for bucket in buckets if (oldest := bucket.oldest()) is not None]
    piece, slot = min(waiting, key=lambda entry: entry[0].first + entry[1])
    ahead = piece.before + np.bincount(piece.buckets[:slot], minlength=len(buckets))
    return [piece.piece.position(slot), (given - ahead).tolist()]


@dataclass(frozen=True, eq=False)
class _BucketedPiece:
    """A piece with the bucket index of each row; ``before`` is the number of rows per bucket in earlier pieces."""

    piece: Piece
    buckets: Index
    before: Index

    @cached_property
    def first(self) -> int:
        """The number of the piece's first row."""
        return int(self.before.sum())


class _LengthBucket:
    """The rows that wait in one bucket, in input order."""

    def __init__(self, size: int, max_wait: int) -> None:
        self.size, self._max_wait = size, max_wait
        self.waiting = 0  # rows of the next batch, which is not complete
        self._oldest = 0  # the number of the first of them
        self._runs: deque[tuple[_BucketedPiece, Index]] = deque()

    def add(self, piece: _BucketedPiece, slots: Index) -> list[tuple[int, int]]:
        """Add rows; return the batches that this completes, as (twice the slot, plus 1 if it is part of it; rows)."""
        if len(slots):
            self._runs.append((piece, slots))
        completed: list[tuple[int, int]] = []
        first, added = piece.first, 0
        while self.waiting or added < len(slots):
            if not self.waiting:
                self._oldest = first + int(slots[added])
            due = self._oldest + self._max_wait - first
            last = added + self.size - self.waiting - 1
            if last < len(slots) and slots[last] < due:
                completed.append((2 * int(slots[last]) + 1, self.size))
                added = last + 1
            elif due < len(piece.buckets):
                before = int(np.searchsorted(slots, due))
                completed.append((2 * due, self.waiting + before - added))
                added = before
            else:
                self.waiting += len(slots) - added
                break
            self.waiting = 0
        return completed

    def oldest(self) -> tuple[_BucketedPiece, int] | None:
        return (self._runs[0][0], int(self._runs[0][1][0])) if self._runs else None

    def take(self, missing: int) -> Rows:
        """Remove and return the next rows."""
        taken = []
        while missing:
            piece, slots = self._runs.popleft()
            taken.append(piece.piece.rows.take(slots[:missing]))
            if missing < len(slots):
                self._runs.appendleft((piece, slots[missing:]))
            missing -= min(missing, len(slots))
        return concat_rows(taken)
