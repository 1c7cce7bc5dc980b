"""batch: groups consecutive rows into batches; later operators receive whole batches."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cedar.core.block import Block
from cedar.core.columns import ColumnType, blank, from_flags
from cedar.core.errors import PipelineError, invalid_call
from cedar.core.groups import concat_each
from cedar.core.limits import as_int
from cedar.core.stream import (
    PENDING,
    Abstract,
    At,
    Count,
    Flow,
    Piece,
    Position,
    Pulled,
    Rows,
    Stream,
    concat_rows,
)
from cedar.operators.base import (
    BlockKernel,
    Effects,
    Env,
    Ordering,
    Resizable,
    RowUse,
    Schema,
    StreamContext,
    StreamOperator,
)

Last = Literal["drop", "keep", "pad"] | None
# A piece, how many of its slots are used, and which of the others count as rows of a batch; None means all.
Waiting: TypeAlias = "tuple[Piece, int, npt.NDArray[np.bool_] | None]"


class MakesBatches(Abstract):
    """A stream operator that makes batches.

    Attributes:
        last: what to do with the last batch: "drop", "keep", "pad"; None gives ranks equal steps.
    """

    last: Last

    @property
    @abstractmethod
    def max_rows(self) -> int:
        """The maximum number of rows in a batch."""

    @property
    def full_sizes(self) -> tuple[int, ...]:
        """The numbers of rows of full batches."""
        return (self.max_rows,)

    @property
    def batch_rows(self) -> int | None:
        """The rows per batch if all have the same number; then rows may also come in any order."""
        return None

    @abstractmethod
    def keeping_rest(self) -> Self:
        """Return a copy that keeps every row at the end of an epoch, for ranks with unequal numbers of steps."""


@dataclass(frozen=True)
class Batch(StreamOperator, MakesBatches, Resizable):
    """Groups consecutive rows into batches of ``size`` rows.

    A skipped row counts, so it shortens its own batch and does not shift later batches. ``last`` decides about the
    incomplete batch at the end: "drop", "keep", or "pad" it to ``size`` and add a boolean column ``valid``. None keeps
    it, and several ranks share the rows that do not fill a whole step.
    """

    size: int
    last: Last = None
    local: bool = False
    name = "batch"
    row_use = RowUse(lanes=True)
    group_use = "kept"
    ordering = Ordering(moves_rows=True, reports_splits_started=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", as_int(self.size))
        if isinstance(self.size, bool) or not isinstance(self.size, int) or self.size < 1:
            raise invalid_call(f"batch({self.size!r}): the size must be an integer, at least 1")
        if self.last not in (None, "drop", "keep", "pad"):
            raise invalid_call(f'last={self.last!r}: it must be "drop", "keep", "pad" or None')

    def keeping_rest(self) -> Batch:
        return self if self.last else replace(self, last="keep")

    def resized(self, few: Callable[[int, int, int], int]) -> Batch:
        return replace(self, size=few(self.size, 4, 3))

    def label(self) -> str:
        return f"batch({self.size})" if self.last is None else f"batch({self.size}, last={self.last!r})"

    def effects(self) -> Effects:
        return Effects(frozenset(), frozenset({"valid"} if self.last == "pad" else ()), rows="stream")

    def parameters(self) -> dict[str, Any]:
        return {"size": self.size, "last": self.last, "local": self.local}

    def schema(self, *inputs: Schema) -> Schema:
        schema = inputs[0]
        if schema is None or self.last != "pad":
            return schema
        check_no_valid_column(schema)
        return {**schema, "valid": pa.bool_()}

    def batched(self, *inputs: bool) -> bool:
        if inputs[0]:
            raise PipelineError("batch() on batches: the pipeline is already batched", fix="remove one of the two")
        return True

    @property
    def batch_rows(self) -> int:
        return self.size

    @property
    def max_rows(self) -> int:
        return self.size

    def stream(self, inputs: tuple[Stream, ...], context: StreamContext) -> Stream:
        return BatchStream(inputs[0], self.size, self.last, context.refills)

    def sample(self, *inputs: Block) -> Block:
        return inputs[0] if self.last != "pad" else PadBatch(len(inputs[0]), inputs[0].types)(inputs[0], Env())


class BatchStream(Stream):
    """Groups rows into batches without copying them.

    With ``refills``, the next row replaces a skipped row. Skipped rows belong to the previous batch, or to the first
    batch, so a batch is complete only when the row after its last one arrives.
    """

    def __init__(self, source: Stream, size: int, last: Last, refills: bool = False) -> None:
        self._source = source
        self._size = size
        self._last = last
        self._refills = refills
        self.left_out = 0  # number of rows that ``last="drop"`` dropped at the end

    @property
    def count(self) -> Count:  # type: ignore[override]
        rows = self._source.count
        if rows is None or rows == math.inf:
            return rows
        return int(rows) // self._size if self._last == "drop" else -(-int(rows) // self._size)

    @property
    def reopens_quickly(self) -> bool:
        return self._source.reopens_quickly and not self._refills

    def start(self) -> At:
        return [self._source.start(), 0]

    def seek(self, unit: int, lap: int = 0) -> Position:
        if self._refills:  # how many input rows precede a batch is known only after a run
            return [self.start(), unit]
        return [self._source.seek(unit * self._size, lap), 0]

    def rows_of(self, unit: int) -> range | None:
        rows = self._source.count
        if rows is None or rows == math.inf:
            return None
        return range(min(unit * self._size, int(rows)), min((unit + 1) * self._size, int(rows)))

    def cut(self, rows: range) -> Flow:
        source = self._source.open(self._source.seek(rows.start))
        flow = _BatchFlow(self, source, len(rows), "keep", refills=False)
        flow.limit(1)
        return flow

    def fits(self, at: At) -> bool:
        return self._source.fits_position(at)

    def open_at(self, at: At, lap: int) -> Flow:
        return _BatchFlow(self, self._source.open(at, lap), self._size, self._last, self._refills)


class _BatchFlow(Flow):
    """Cuts the rows of a flow into batches; ``stream`` counts the rows that ``last="drop"`` leaves out."""

    def __init__(self, stream: BatchStream, source: Flow, size: int, last: Last, refills: bool) -> None:
        self._stream, self._source = stream, source
        self._size, self._last, self._refills = size, last, refills
        self._reports_ends = stream.count is None  # pieces then have a position after the batch's last row
        self._waiting: list[Waiting] = []
        self._buffered = 0  # number of waiting rows that count
        self._first, self._ended = True, False

    def limit(self, units: int) -> None:
        if not self._refills:
            self._source.limit(units * self._size)

    def pull(self, wait: bool) -> Pulled:
        waiting, size = self._waiting, self._size
        while self._buffered < size + self._refills and not self._ended:
            self._gather_window_rest()
            piece = self._source.pull(wait)
            if piece is PENDING:
                return PENDING
            if piece is None:
                self._ended = True
            elif piece.units:
                counted = piece.rows.counted()
                waiting.append((piece, 0, counted))
                self._buffered += piece.units if counted is None else int(counted.sum())
            del piece  # else its blocks would stay in memory until the next piece arrives
        if self._buffered < size and self._last == "drop":
            self._stream.left_out += self._buffered
            self._buffered = 0
            waiting.clear()
        # A batch of skipped rows only is delivered to count them.
        return self._cut() if self._buffered or (waiting and self._first) else None

    def _gather_window_rest(self) -> None:
        """Copy the last rows of a finished shuffle window, to free the window's blocks before the next one arrives."""
        for i, (piece, start, counted) in enumerate(self._waiting):
            if piece.ends_window and isinstance(piece.rows.row, np.ndarray):
                rest = piece.slice(start, piece.units)
                self._waiting[i] = (replace(rest, rows=Rows.of(rest.rows.gather())), 0, counted)

    def _cut(self) -> Piece:
        """Remove the next batch from the waiting rows."""
        waiting = self._waiting
        latest, start, _ = waiting[0]
        at, end = [latest.at, latest.skip + start], latest.end
        runs: list[Rows] = []
        left, keeps = self._size, None
        while waiting:
            piece, start, counted = waiting[0]
            remaining = piece.units - start if counted is None else int(counted.sum())
            if remaining <= left:
                runs.append(piece.rows.slice(start, piece.units))
                keeps, end, latest = piece.keeps, piece.end, piece
                left -= remaining
                waiting.pop(0)
                continue
            used = left if counted is None else int(np.searchsorted(np.cumsum(counted), left + 1))
            if used:
                keeps = piece.keeps
                runs.append(piece.rows.slice(start, start + used))
                waiting[0] = (piece, start + used, None if counted is None else counted[used:])
            break
        self._buffered, self._first = max(0, self._buffered - self._size), False
        if end is not None or self._reports_ends:
            latest, start = waiting[0][:2] if waiting else (latest, len(latest.rows))
            end = [end if end is not None and not waiting else [latest.at, latest.skip + start], 0]
        return Piece(runs[0] if len(runs) == 1 else concat_rows(runs), at, 0, batch=True, keeps=keeps, end=end)

    def close(self) -> None:
        self._waiting.clear()
        self._source.close()


@dataclass(frozen=True)
class PadBatch(BlockKernel):
    """The kernel of ``last="pad"``: pads a batch to ``size`` rows and marks the real rows in the column ``valid``."""

    size: int
    types: dict[str, ColumnType]
    only_empty: bool = False  # True pads only batches without columns

    def __call__(self, block: Block, env: Env) -> Block:
        if self.only_empty and block.columns:
            return block
        have = len(block)
        check_no_valid_column(block.columns)
        columns = block.columns or {name: blank(kind, 0) for name, kind in self.types.items() if name != "valid"}
        missing = self.size - have
        if missing > 0:
            columns = concat_each([columns, {n: blank(self.types[n], missing) for n in columns}])
        valid = np.zeros(have + max(missing, 0), dtype=bool)
        valid[:have] = True
        return Block({**columns, "valid": from_flags(valid)}, block.keys, block.dead, aligned=False)


def check_no_valid_column(columns: Collection[str]) -> None:
    """Raise PipelineError if ``last="pad"`` would overwrite a user column named ``valid``."""
    if "valid" in columns:
        raise invalid_call(
            'batch(last="pad") adds a column "valid", but the input already has one',
            fix='rename it first: rename({"valid": "is_valid"})',
        )
