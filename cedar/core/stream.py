"""The data flow between operators: pieces of rows with positions, pulled in order.

A *stream* can be opened at a position. An open stream is a *flow*, from which pieces are pulled. A position is
``[at, skip]``: open the stream at ``at`` (plain JSON that the operator defines), then drop ``skip`` units (rows or
batches). ``Rows`` are indices into blocks. Values are only gathered when an operator needs them.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from cedar.core.block import TAKEN_OUT, Block, concat_blocks
from cedar.core.columns import Index
from cedar.core.cursor import Keys, concat_keys

T = TypeVar("T")
At: TypeAlias = Any
Position: TypeAlias = list[Any]  # [At, int]
Count: TypeAlias = "int | float | None"  # units; math.inf for endless streams; None if only known after a run


class _Nominal(ABCMeta):
    """Metaclass of ``Abstract``."""

    __instancecheck__ = type.__instancecheck__
    __subclasscheck__ = type.__subclasscheck__


class Abstract(metaclass=_Nominal):
    """As ``abc.ABC``, but ``isinstance`` runs no Python code, since classes cannot be registered as subclasses."""


class Pending(Enum):
    """The next piece is not available yet."""

    PENDING = "pending"


PENDING: Final = Pending.PENDING


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows given by indices: row i is slot ``row[i]`` of ``blocks[part[i]]``.

    If all slots come from one block, ``part`` is None, and ``row`` may be a range.
    """

    blocks: tuple[Block, ...]
    row: range | Index
    part: Index | None = None

    @staticmethod
    def of(block: Block) -> Rows:
        return Rows((block,), range(len(block.keys.row)))

    def __len__(self) -> int:
        return len(self.row)

    def slice(self, start: int, stop: int) -> Rows:
        if start == 0 and stop >= len(self.row):
            return self
        if self.part is None:
            return Rows(self.blocks, self.row[start:stop])
        return _compact(self.blocks, self.row[start:stop], self.part[start:stop])  # type: ignore[arg-type]

    def take(self, index: Index) -> Rows:
        row = self.row.start + index if isinstance(self.row, range) else self.row[index]
        return Rows(self.blocks, row, None if self.part is None else self.part[index])

    def compact(self) -> Rows:
        """Return the same rows without blocks that no row uses."""
        return self if self.part is None else _compact(self.blocks, self.row, self.part)  # type: ignore[arg-type]

    def keys(self) -> Keys:
        """Return the keys of the rows without gathering their columns."""
        if self.part is None:
            index = slice(self.row.start, self.row.stop) if isinstance(self.row, range) else self.row
            return self.blocks[0].keys.take(index)
        starts = np.cumsum([0, *[b.slots for b in self.blocks]])[:-1]
        return concat_keys([b.keys for b in self.blocks]).take(starts[self.part] + _indices(self.row))

    def counted(self) -> npt.NDArray[np.bool_] | None:
        """Return which slots count in a batch: all but dead slots that the next row replaces. None means all slots."""
        counts: npt.NDArray[np.bool_] | None = None
        for number, block in enumerate(self.blocks):
            if block.dead and (slots := [slot for slot, why in block.dead.items() if why.refill]):
                row = _indices(self.row)
                counts = np.ones(len(row), dtype=bool) if counts is None else counts
                mine = counts if self.part is None else self.part == number
                counts[mine] = ~np.isin(row[mine], np.array(slots, dtype=np.int64))
        return counts

    def within(self, index: int) -> Rows:
        return replace(self, blocks=tuple(b.within(index) for b in self.blocks))

    def gather(self) -> Block:
        """Gather the rows into one block; contiguous runs are not copied separately."""
        if self.part is None:
            block, row = self.blocks[0], self.row
            if isinstance(row, range):
                return block if len(row) == len(block.keys.row) else block.slice(row.start, row.stop)
            if len(row) and row[-1] - row[0] == len(row) - 1 and bool(np.all(np.diff(row) == 1)):
                return block.slice(int(row[0]), int(row[-1]) + 1)
            return block.take(row)
        if not len(self.part):
            return self.blocks[0].slice(0, 0)
        order = np.argsort(self.part, kind="stable")
        present = self.part[order]
        cuts = np.flatnonzero(np.diff(present)) + 1
        row = _indices(self.row)
        runs = [Rows((self.blocks[int(self.part[index[0]])],), row[index]) for index in np.split(order, cuts)]
        block = concat_blocks([run.gather() for run in runs])
        if np.array_equal(order, np.arange(len(order))):
            return block
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        return block.take(back)

    @property
    def nbytes(self) -> int:
        return self.blocks[0].nbytes if len(self.blocks) == 1 else sum(b.nbytes for b in self.blocks)


def _indices(row: range | Index) -> Index:
    """Return the indices as an array. NumPy itself would convert a range item by item."""
    return np.arange(row.start, row.stop, dtype=np.int64) if isinstance(row, range) else row


def _compact(blocks: tuple[Block, ...], row: Index, part: Index) -> Rows:
    used = np.unique(part)
    if len(used) <= 1:
        return Rows((blocks[int(used[0]) if len(used) else 0],), row)
    if len(used) == len(blocks):
        return Rows(blocks, row, part)
    return Rows(tuple(blocks[int(u)] for u in used), row, np.searchsorted(used, part).astype(np.int64))


def concat_rows(runs: Sequence[Rows]) -> Rows:
    """Concatenate several ``Rows`` without gathering values."""
    runs = [r for r in runs if len(r)] or list(runs[:1])
    if len(runs) == 1:
        return runs[0]
    first = runs[0]
    if all(r.part is None and r.blocks[0] is first.blocks[0] for r in runs):
        return Rows(first.blocks, np.concatenate([_indices(r.row) for r in runs]))
    parts = []
    offset = 0
    for run in runs:
        parts.append((np.zeros(len(run), dtype=np.int64) if run.part is None else run.part) + offset)
        offset += len(run.blocks)
    return Rows(
        tuple(b for r in runs for b in r.blocks),
        np.concatenate([_indices(r.row) for r in runs]),
        np.concatenate(parts),
    )


@dataclass(init=False, eq=False, slots=True)
class Piece:
    """Consecutive units (rows or batches) of a flow.

    Args:
        rows: the rows of the units; one batch is one piece.
        at: where to open the stream so that, after dropping ``skip`` units, the first unit of this piece comes next.
        batch: True when the piece is one batch rather than a run of rows.
        ends_window: True on the last piece of a window.
        key: the key of a batch; None means the key of its first row. They differ if ranks have slices of one batch.
        keeps: number of splits that the lane has begun by the end of this piece's window; None if unknown.
        joined: True if it was made from several pieces, so that ``at`` is only valid for the first of them.
        end: the position after the last unit, if what comes next depends on which task finishes first; None means
            ``skip`` plus the number of units, from ``at``.
    """

    rows: Rows
    at: At
    skip: int
    batch: bool
    ends_window: bool
    key: Keys | None
    keeps: int | None
    joined: bool
    end: Position | None
    units: int = field(init=False)  # number of rows; 1 for a batch

    def __init__(
        self, rows: Rows, at: At, skip: int = 0, batch: bool = False, ends_window: bool = False,
        key: Keys | None = None, keeps: int | None = None, joined: bool = False, end: Position | None = None,
    ) -> None:  # fmt: skip
        self.rows, self.at, self.skip, self.batch, self.ends_window = rows, at, skip, batch, ends_window
        self.key, self.keeps, self.joined, self.end = key, keeps, joined, end
        self.units = 1 if batch else len(rows.row)

    @property
    def unit_key(self) -> Keys:
        """The key of this batch."""
        return self.key if self.key is not None else self.rows.slice(0, 1).keys()

    def position(self, unit: int = 0) -> Position:
        return [self.at, self.skip + unit]

    def slice(self, start: int, stop: int) -> Piece:
        """Return units ``start`` to ``stop``. ``ends_window`` stays True if the last unit is included."""
        whole = stop >= self.units
        if start == 0 and whole:
            return self
        rows = self.rows if self.batch else self.rows.slice(start, stop)
        ends, end = (self.ends_window, self.end) if whole else (False, None)
        return Piece(rows, self.at, self.skip + start, self.batch, ends, keeps=self.keeps, joined=self.joined, end=end)


Pulled: TypeAlias = "Piece | Pending | None"  # None at the end


class Fenced(Exception):
    """Raised where another plan continues, which must be opened after the last delivered unit."""


class Altered(Exception):
    """Raised, while a position is checked, at the first split whose rows may differ from when the state was saved.

    Args:
        text: names the file and its change.
        delivered: whether rows of the split may have been delivered.
    """

    def __init__(self, text: str, delivered: bool = False) -> None:
        super().__init__(text)
        self.delivered = delivered


class Flow(Abstract):
    """An open stream."""

    @abstractmethod
    def pull(self, wait: bool) -> Pulled:
        """Return the next piece; None at the end; PENDING only if ``wait`` is False and the piece is not available yet.

        A piece may have no units, such as the end of a window whose rows were all filtered out.
        """

    def limit(self, units: int) -> None:
        """Announce that at most ``units`` more are needed, to limit reading ahead. Pulling more units still works."""

    def close(self) -> None:
        """Cancel tasks in flight and release their memory."""


Pieces: TypeAlias = Generator[Pulled, bool, None]


class Closes(Protocol):
    """A flow, or anything else to close with one."""

    def close(self) -> None: ...


class GeneratorFlow(Flow):
    """A flow whose pieces a generator yields.

    When the flow is opened, the generator opens its inputs, unless they are open, and yields PENDING once. Then each
    ``pull`` sends it ``wait``, and it yields the next piece or PENDING; it returns at the end. If it raises an error,
    such as ``Fenced``, later pulls raise the error again. Closing the flow closes the generator, which runs its
    ``finally`` blocks.

    The variables of a generator live until it is resumed and assigns them again. Therefore a generator deletes a piece
    before it pulls the next one; otherwise two windows of a shuffle would be in memory.

    Args:
        pieces: the generator.
        inputs: the flows and tasks to close together with this one, in order.
        limit: implements ``limit``; None ignores it.

    Examples:
        >>> from cedar.core.stream import PENDING, Flow, GeneratorFlow, Pieces
        >>> def every_piece(source: Flow) -> Pieces:
        ...     wait = yield PENDING
        ...     while (piece := source.pull(wait)) is not None:
        ...         wait = yield piece
        ...         del piece
        >>> def open_copy(source: Flow) -> Flow:
        ...     return GeneratorFlow(every_piece(source), source, limit=source.limit)
    """

    def __init__(self, pieces: Pieces, *inputs: Closes, limit: Callable[[int], None] | None = None) -> None:
        self._pieces = pieces
        self._inputs = inputs
        self._limit = limit
        self._error: BaseException | None = None
        if next(pieces, PENDING) is not PENDING:
            raise TypeError("the generator of a GeneratorFlow must yield PENDING before its first piece")

    def pull(self, wait: bool) -> Pulled:
        try:
            return self._pieces.send(wait)
        except StopIteration:
            if self._error is None:
                return None
        except BaseException as error:
            self._error = error
            raise
        raise self._error

    def limit(self, units: int) -> None:
        if self._limit is not None:
            self._limit(units)

    def close(self) -> None:
        self._error = RuntimeError("the flow is closed")
        self._pieces.close()
        for each in self._inputs:
            each.close()


def converted(pull: Callable[[bool], T | Pending | None], convert: Callable[[T], Piece | None]) -> Pieces:
    """Yield what ``convert`` makes of each result of ``pull``; None leaves a result out."""
    wait = yield PENDING
    while (pulled := pull(wait)) is not None:
        piece = PENDING if pulled is PENDING else convert(pulled)
        if piece is not None:
            wait = yield piece
        del pulled, piece


class Stream(Abstract):
    """An operator of a plan. It can be opened at any position, any number of times."""

    count: Count = None

    @property
    def reopens_quickly(self) -> bool:
        """Whether opening the stream at the position of a piece reads and computes at most one split again."""
        return False

    @abstractmethod
    def start(self) -> At:
        """Return where the epoch begins."""

    @abstractmethod
    def open_at(self, at: At, lap: int) -> Flow:
        """Open a flow at ``at``. ``lap`` is the number of the current pass of the ``repeat`` operators above."""

    def seek(self, unit: int, lap: int = 0) -> Position:
        """Return the position of a unit: directly if ``count`` is known, else by dropping the units before it."""
        return [self.start(), unit]

    def seek_window(self, unit: int, lap: int = 0) -> tuple[Position, int]:
        """Return the start of the window with ``unit``, and the number of its first unit. ``count`` must be known."""
        raise TypeError(f"{type(self).__name__} has no windows")

    def rows_of(self, unit: int) -> range | None:
        """Return which rows of the input stream form a batch; None if that is only known after a run."""
        return None

    def cut(self, rows: range) -> Flow:
        """Open a flow of one batch that consists of these rows of the input stream."""
        raise TypeError(f"{type(self).__name__} makes no batches")

    def rebase(self, piece: Piece) -> At | None:
        """Return where to open this stream, under any plan, so that ``piece`` is first; None if that needs counting."""
        return None

    def fits(self, at: At) -> bool:
        """Whether ``open_at`` accepts ``at``, which may come from an edited state file.

        By default, ``at`` must have the form of ``start()``. Streams whose positions contain others check those too.
        """
        return _same_form(at, self.start())

    def fits_position(self, position: Any) -> bool:
        """Whether ``open`` accepts a position."""
        return is_list(position, 2) and is_count(position[1]) and self.fits(position[0])

    def open(self, position: Position, lap: int = 0) -> Flow:
        at, skip = position
        flow = self.open_at(at, lap)
        return _drop_units(flow, skip) if skip else flow


def is_count(value: Any) -> bool:
    """Whether a value of a position is a count: an integer, not negative, and below 2^62."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def is_list(value: Any, length: int) -> bool:
    """Whether a value of a position is a list of this length."""
    return isinstance(value, (list, tuple)) and len(value) == length


def _same_form(value: Any, example: Any) -> bool:
    if isinstance(example, (list, tuple)):
        return is_list(value, len(example)) and all(map(_same_form, value, example))
    return value is None if example is None else is_count(value)


def _drop_units(source: Flow, units: int) -> Flow:
    """Return a flow without the first units of ``source``."""

    def pull(wait: bool) -> Pulled:
        try:
            return source.pull(wait)
        except Altered as altered:
            altered.delivered = altered.delivered or units > 0
            raise

    def drop(piece: Piece) -> Piece | None:
        nonlocal units
        if not units:
            return piece
        dropped = min(units, piece.units)
        units -= dropped
        dead = piece.rows.blocks[0].dead  # a dead slot may stand for the rows of a file that disappeared
        lost_slot = next((slot for slot, why in dead.items() if why.lost[1:] == (TAKEN_OUT,)), None)
        if lost_slot is not None and lost_slot <= dropped:  # the number of lost rows is unknown
            dropped, units = lost_slot + 1, 0
        if dropped < piece.units:
            return piece.slice(dropped, piece.units)
        if not piece.ends_window:
            return None
        return Piece(piece.rows.slice(0, 0), piece.at, piece.skip + piece.units, ends_window=True)

    return GeneratorFlow(converted(pull, drop), source, limit=lambda more: source.limit(units + more))
