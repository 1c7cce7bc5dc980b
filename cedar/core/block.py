"""Block: many rows stored column by column. cedar sends, measures and retries rows one block at a time.

A block has one *slot* per logical row, each with its key. If a row fails under ``Skip``, its slot stays in the block as
a dead slot. Batches can therefore be cut by row number before rows are skipped. Columns only contain live rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cedar.core import columns as _columns
from cedar.core.boundary import to_frame
from cedar.core.columns import UNKNOWN, Column, ColumnType, Index
from cedar.core.cursor import Keys, concat_keys
from cedar.core.errors import PipelineError
from cedar.core.groups import GroupColumn, concat_each, cut_each, plain, take_each

if TYPE_CHECKING:
    import polars as pl

TAKEN_OUT = -2


@dataclass(frozen=True, slots=True)
class Skipped:
    """Why a slot is dead: the operator (its ordinal and label) and the error as a string.

    ``refill``: the next row replaces this one in the batch; the slot is kept so that delivery counts the skip.
    ``lost``: for a damaged file, the first lost row and the number of lost rows (-1: unknown; TAKEN_OUT: the file
    disappeared in the middle of an epoch). It is () for a bad row.
    """

    operator: int
    label: str
    error: str
    refill: bool = False
    lost: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """Columns of equal length and the keys of their rows.

    Args:
        columns: the columns by name, each with one entry per live row.
        keys: one key per slot.
        dead: the reason for each dead slot, by slot number.
        aligned: False for a batch that a user function resized, whose rows no longer correspond to slots.

    Examples:
        >>> import numpy as np, pyarrow as pa
        >>> from cedar.core.cursor import Keys
        >>> block = Block({"x": pa.array([1, 2, 3])}, Keys(np.arange(3)))
        >>> block.take(np.array([2, 0])).columns["x"].to_pylist()
        [3, 1]
    """

    columns: dict[str, Column]
    keys: Keys
    dead: Mapping[int, Skipped] = field(default_factory=dict)
    aligned: bool = True

    def __len__(self) -> int:
        """Return the number of live rows."""
        if not self.aligned and self.columns:
            return len(next(iter(self.columns.values())))
        return len(self.keys) - len(self.dead)

    @property
    def slots(self) -> int:
        """The number of logical rows, including dead ones."""
        return len(self.keys.row)

    @property
    def nbytes(self) -> int:
        return sum(_columns.nbytes_each(self.columns.values())) + 8 * len(self.keys.row)

    @property
    def types(self) -> dict[str, ColumnType]:
        return {name: c.type if isinstance(c, pa.Array) else _columns.type_of(c) for name, c in self.columns.items()}

    @property
    def is_nothing(self) -> bool:
        """Whether the block has no rows and its columns are unknown."""
        return not self.columns and self.aligned and not self.slots

    @property
    def known_types(self) -> dict[str, ColumnType]:
        """The column types. In a block without rows, a null column may get any type later, so its type is UNKNOWN."""
        types = self.types
        return types if len(self) else {name: UNKNOWN if kind == pa.null() else kind for name, kind in types.items()}

    def live_slots(self) -> Index:
        """Return the slot of each live row."""
        if not self.dead:
            return np.arange(self.slots, dtype=np.int64)
        alive = np.ones(self.slots, dtype=bool)
        alive[list(self.dead)] = False
        return np.flatnonzero(alive)

    def live_keys(self) -> Keys:
        """Return the key of each live row."""
        return self.keys.take(self.live_slots()) if self.dead else self.keys

    def take(self, slots: Index) -> Block:
        """Return a block of the slots ``slots``, in that order, including dead slots."""
        if not self.dead:
            return Block(take_each(self.columns, slots), self.keys.take(slots))
        position = np.full(self.slots, -1, dtype=np.int64)
        live = self.live_slots()
        position[live] = np.arange(len(live))
        rows = position[slots]
        dead = {int(i): self.dead[int(slots[i])] for i in np.flatnonzero(rows < 0)}
        rows = rows[rows >= 0]
        return Block(take_each(self.columns, rows), self.keys.take(slots), dead)

    def slice(self, start: int, stop: int) -> Block:
        """Return slots ``start`` to ``stop`` without a copy."""
        if start == 0 and stop == self.slots:
            return self
        keys = self.keys.take(slice(start, stop))
        if not self.dead:
            return Block(cut_each(self.columns, start, stop), keys)
        live = self.live_slots()
        low, high = np.searchsorted(live, [start, stop])
        dead = {slot - start: why for slot, why in self.dead.items() if start <= slot < stop}
        return Block(cut_each(self.columns, int(low), int(high)), keys, dead)

    def filter(self, keep: npt.NDArray[np.bool_]) -> Block:
        """Return the live rows for which ``keep`` (one bool per live row) is True. Slots of the others are dropped."""
        rows = np.flatnonzero(keep)
        columns = take_each(self.columns, rows)
        return self.with_slots(columns, rows)

    def with_slots(self, columns: dict[str, Column], rows: Index) -> Block:
        """Return a block of ``columns``; row i keeps the slot of this block's live row ``rows[i]`` (ascending)."""
        if not self.dead:
            return Block(columns, self.keys.take(rows))
        remains = np.zeros(self.slots, dtype=bool)
        remains[list(self.dead)] = True
        remains[self.live_slots()[rows]] = True
        renumbered = np.cumsum(remains) - 1
        dead = {int(renumbered[slot]): why for slot, why in self.dead.items()}
        return Block(columns, self.keys.take(np.flatnonzero(remains)), dead)

    def expand(self, columns: dict[str, Column], counts: Index) -> Block:
        """Return a block of ``columns`` with ``counts[i]`` slots for live row i, and one slot for each skipped row."""
        slots = np.ones(self.slots, dtype=np.int64)
        slots[self.live_slots()] = counts
        starts = np.cumsum(slots) - slots
        return Block(columns, self.keys.expand(slots), {int(starts[slot]): why for slot, why in self.dead.items()})

    def kill(self, failed: Mapping[int, Skipped]) -> Block:
        """Return the block without the live rows in ``failed``, whose slots become dead."""
        if not failed:
            return self
        live = self.live_slots()
        dead = dict(self.dead) | {int(live[row]): why for row, why in failed.items()}
        keep = np.ones(len(live), dtype=bool)
        keep[list(failed)] = False
        rows = np.flatnonzero(keep)
        return Block(take_each(self.columns, rows), self.keys, dead)

    def with_columns(self, columns: Mapping[str, Column]) -> Block:
        """Return the block with some columns added or replaced."""
        return Block({**self.columns, **columns}, self.keys, self.dead, self.aligned)

    def only_columns(self, columns: Mapping[str, Column]) -> Block:
        """Return a block with the same rows and keys, but only these columns."""
        return Block(dict(columns), self.keys, self.dead, self.aligned)

    def within(self, index: int) -> Block:
        """Return the block with its keys changed to those of rows from input ``index`` of a mix or concat."""
        return Block(self.columns, self.keys.within(index), self.dead, self.aligned)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the live rows as dicts of plain Python values and ndarrays."""
        names = list(self.columns)
        if not names:
            yield from ({} for _ in range(len(self)))
            return
        for values in zip(*(named_values(name, c) for name, c in self.columns.items()), strict=True):
            yield dict(zip(names, values, strict=True))


def named_values(name: str, column: Column, error: Callable[..., PipelineError] = PipelineError) -> Sequence[Any]:
    """Return a column as Python values, as ``python_values`` does.

    Raises:
        PipelineError: an ``error`` if a value has no Python type, such as a time in nanoseconds or after the year 9999.
    """
    try:
        return python_values(column)
    except (pa.ArrowException, ValueError, OverflowError) as reason:
        kind: Any = _columns.type_of(column)
        cast = f"cast it first: with_columns(**{{{name!r}: col({name!r}).cast(polars.Int64)}})"
        raise error(
            f"column {name!r} of {kind} holds values without a Python type: {reason}",
            fix=f"convert it, or drop({name!r})" if pa.types.is_nested(kind) else cast,
        ) from reason


def python_values(column: Column) -> Sequence[Any]:
    """Return a column as Python values: plain values for Arrow, ndarrays or scalars for ndarrays."""
    if isinstance(column, pa.Array | GroupColumn):
        array = plain(column)
        if array.type == pa.time64("ns"):
            array = array.cast(pa.time64("us"))  # Python's times would lose the nanoseconds
        return array.to_pylist()  # type: ignore[no-any-return]
    if column.ndim == 1 and column.dtype != object:
        return column.tolist()  # type: ignore[no-any-return]
    return column  # type: ignore[no-any-return]


def concat_blocks(blocks: Sequence[Block]) -> Block:
    """Concatenate blocks of the same columns."""
    if len(blocks) == 1:
        return blocks[0]
    nonempty = [b.columns for b in blocks if len(b)]  # empty blocks may not know their column types
    columns = concat_each(nonempty or [blocks[0].columns])
    dead: dict[int, Skipped] = {}
    offset = 0
    for block in blocks:
        dead.update({slot + offset: why for slot, why in block.dead.items()})
        offset += block.slots
    return Block(columns, concat_keys([b.keys for b in blocks]), dead)


_FRAME_ROWS = 65_536  # rows per frame; fixed, so that results do not depend on block sizes


def first_rows(blocks: Iterable[Block], n: int) -> pl.DataFrame:
    """Return the first ``n`` rows of all blocks."""
    import polars as pl

    heads: list[pl.DataFrame] = []
    for block in blocks:
        heads.append(frame_of(block).head(n))
        n -= heads[-1].height
        if n <= 0:
            break
    return pl.concat(heads, how="vertical_relaxed") if heads else pl.DataFrame()


def frame_of(block: Block) -> pl.DataFrame:
    """Convert the rows of a block, including tensors and objects, to a polars frame.

    Raises:
        PipelineError: polars does not have the type of a column.
    """
    import polars as pl

    columns = {name: plain(column) for name, column in block.columns.items()}
    arrays = to_frame({name: column for name, column in columns.items() if not isinstance(column, np.ndarray)})

    def series(name: str, column: Any) -> pl.Series:
        if not isinstance(column, np.ndarray):
            return arrays[name]
        return pl.Series(name, column.tolist(), dtype=pl.Object) if column.dtype == object else pl.Series(name, column)

    return pl.DataFrame([series(name, column) for name, column in columns.items()])


def equal_frames(frames: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Yield the rows in frames of 65,536 rows, so that results computed per frame do not depend on block sizes."""
    import polars as pl

    pending: list[pl.DataFrame] = []
    height = 0
    for frame in frames:
        pending.append(frame)
        height += frame.height
        while height >= _FRAME_ROWS:
            whole = pl.concat(pending, how="vertical_relaxed").rechunk()  # polars sums floats chunk by chunk
            yield whole[:_FRAME_ROWS].rechunk()
            pending = [whole[_FRAME_ROWS:]]
            height -= _FRAME_ROWS
    if height:
        yield pl.concat(pending, how="vertical_relaxed").rechunk()


@dataclass(frozen=True, slots=True)
class Observation:
    """The measurements of one call of an operator on one block: rows, decoded bytes, seconds.

    ``columns`` maps each column that the operator wrote (for a source: every column) to its decoded bytes.
    """

    rows_in: int
    rows_out: int
    bytes_in: int
    bytes_out: int
    wall: float
    cpu: float
    columns: dict[str, int] = field(default_factory=dict)

    def __add__(self, other: Observation) -> Observation:
        """Return the sum of two measurements."""
        names = {*self.columns, *other.columns}
        return Observation(
            self.rows_in + other.rows_in,
            self.rows_out + other.rows_out,
            self.bytes_in + other.bytes_in,
            self.bytes_out + other.bytes_out,
            self.wall + other.wall,
            self.cpu + other.cpu,
            {name: self.columns.get(name, 0) + other.columns.get(name, 0) for name in names},
        )
