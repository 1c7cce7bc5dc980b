"""Store the splits of a source as columns, so that a million splits take little memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from cedar.core.columns import Index
from cedar.datasets.base import Split

Numbers: TypeAlias = npt.NDArray[Any]  # integers; splits of custom sources may have floats
Given: TypeAlias = "npt.ArrayLike | None"
_NAMES = ("file", "start", "stop", "rows", "bytes", "part", "streaming")
_UNKNOWN = ("stop", "rows", "bytes")  # columns in which -1 means None
_AT_ONCE = 1 << 14  # splits converted to Python objects at a time


class SplitTable(Sequence[Split]):
    """Splits stored column by column; a ``Split`` object is created on access.

    Sources with very many splits should return one from ``splits()``. Each argument is a single value for all splits or
    an array int64[splits] (``streaming``: bool[splits]); see ``Split`` for their meaning. In arrays of ``stop``,
    ``rows`` or ``bytes``, -1 means None.

    Args:
        length: the number of splits; required if all arguments are single values.

    Raises:
        ValueError: arrays differ in length, have more than one dimension, or do not contain integers.

    Examples:
        >>> import numpy as np
        >>> splits = SplitTable(file=np.arange(1_000_000), rows=1000)
        >>> len(splits), splits[7]
        (1000000, Split(file=7, start=0, stop=None, rows=1000, bytes=None, part=0, streaming=False))
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        *,
        file: npt.ArrayLike = 0,
        start: npt.ArrayLike = 0,
        stop: Given = None,
        rows: Given = None,
        bytes: Given = None,
        part: npt.ArrayLike = 0,
        streaming: npt.ArrayLike = False,
        length: int | None = None,
    ) -> None:
        self._columns: dict[str, Numbers] = {}
        self._objects: Sequence[Split] | None = None
        lengths = set() if length is None else {length}
        for name, given in zip(_NAMES, (file, start, stop, rows, bytes, part, streaming), strict=True):
            self._columns[name] = column = _column(name, given)
            if column.ndim:
                lengths.add(len(column))
        if len(lengths) != 1:
            reported = (
                f"arrays of different lengths: {sorted(lengths)}" if lengths else "only single values, and no length="
            )
            raise ValueError(f"SplitTable: {reported}")
        (self._length,) = lengths

    @staticmethod
    def of(splits: Iterable[Any]) -> SplitTable:
        """Return a table whose items are the given split objects; return a table unchanged."""
        if isinstance(splits, SplitTable):
            return splits
        objects = tuple(splits)
        table = SplitTable(length=len(objects))
        table._columns = {name: _attribute_column(name, objects) for name in _NAMES}
        table._objects = objects
        return table

    @staticmethod
    def from_runs(rows: int, size: int, width: float) -> SplitTable:
        """Return the splits of ``rows`` rows in memory: ``size`` rows per split, ``width`` bytes per row."""
        start = np.arange(0, rows, size, dtype=np.int64)
        stop = np.minimum(start + size, rows)
        count = stop - start
        return SplitTable(
            start=start, stop=stop, rows=count, bytes=(width * count).astype(np.int64), part=start // size
        )

    def __add__(self, other: SplitTable) -> SplitTable:
        """Concatenate two tables; the result does not keep custom split objects."""
        both: dict[str, Any] = {name: np.concatenate([self.column(name), other.column(name)]) for name in _NAMES}
        return SplitTable(**both)

    # ---- columns (read-only), one value per split --------------------------------------------------------------------

    def column(self, name: str) -> Numbers:
        """Return a column as an array of one value per split."""
        column = self._columns[name]
        return column if column.ndim else np.broadcast_to(column, self._length)

    @property
    def rows(self) -> Numbers:
        """Return the rows of each split, -1 if unknown."""
        return self.column("rows")

    @property
    def bytes(self) -> Numbers:
        """Return the bytes of each split, -1 if unknown."""
        return self.column("bytes")

    @property
    def streaming(self) -> npt.NDArray[np.bool_]:
        """Return a mask of the splits that can only be read from their beginning."""
        return self.column("streaming")

    @property
    def streams(self) -> bool:
        """Return whether any split can only be read from its beginning."""
        return bool(self._length and self._columns["streaming"].any())

    @property
    def counted(self) -> bool:
        """Return whether the row counts of all splits are known."""
        return not self._length or bool((self._columns["rows"] >= 0).all())

    @cached_property
    def known_rows(self) -> int:
        """Return the sum of all known row counts."""
        return _total(self.rows)

    @cached_property
    def known_bytes(self) -> int:
        """Return the sum of all known sizes in bytes."""
        return _total(self.bytes)

    @cached_property
    def known_bytes_with_rows(self) -> int:
        """Return the sum of all known sizes in bytes, without splits that may be empty."""
        return _total(self.bytes[self.rows > 0])

    @cached_property
    def max_rows(self) -> int:
        """Return the largest known row count of a split; 0 if none is known."""
        return max(0, int(self.rows.max())) if self._length else 0

    def measured(self) -> tuple[int, int] | None:
        """Return the total rows and bytes of the splits for which both are known; None without such splits."""
        both = (self.rows >= 0) & (self.bytes >= 0)
        return (_total(self.rows[both]), _total(self.bytes[both])) if both.any() else None

    # ---- sequence methods --------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, place: int) -> Split: ...
    @overload
    def __getitem__(self, place: slice | npt.NDArray[np.bool_]) -> SplitTable: ...
    def __getitem__(self, place: int | slice | npt.NDArray[np.bool_]) -> Split | SplitTable:
        if isinstance(place, (slice, np.ndarray)):
            chosen = np.arange(self._length)[place]
            table = SplitTable(length=len(chosen))
            table._columns = {n: c[place] if c.ndim else c for n, c in self._columns.items()}
            table._objects = None if self._objects is None else tuple(self._objects[i] for i in chosen)
            return table
        if self._objects is not None:
            return self._objects[place]
        if not -self._length <= place < self._length:
            raise IndexError(f"split {place} of {self._length}")
        return _split(*[(each[place] if each.ndim else each).item() for each in self._columns.values()])

    def __iter__(self) -> Iterator[Split]:
        if self._objects is not None:
            yield from self._objects
            return
        for low in range(0, self._length, _AT_ONCE):
            values = (self.column(name)[low : low + _AT_ONCE].tolist() for name in _NAMES)
            yield from map(_split, *values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __repr__(self) -> str:
        few = ", ".join(map(repr, islice(self, 3)))
        return f"SplitTable([{few}{', ...' if self._length > 3 else ''}], {self._length} splits)"


def _split(file: int, start: int, stop: int, rows: int, size: int, part: int, streaming: bool) -> Split:
    return Split(
        file, start, None if stop < 0 else stop, None if rows < 0 else rows, None if size < 0 else size, part, streaming
    )


def _column(name: str, given: Any) -> Numbers:
    """Return the values as an array; a single value for all splits becomes an array without dimensions."""
    column = np.asarray(-1 if given is None else given)
    kinds, expected = ("b", "booleans") if name == "streaming" else ("iu", "integers")
    if column.ndim > 1 or (column.size and column.dtype.kind not in kinds):
        shape = f", shape {column.shape}" if column.ndim > 1 else ""
        raise ValueError(f"SplitTable: {name}= takes {expected}, one or an array of them, not {column.dtype}{shape}")
    if name == "streaming":
        return column.astype(bool)
    if column.size and int(column.max()) > np.iinfo(np.int64).max:
        raise ValueError(f"SplitTable: {name}= has numbers of more than 63 bits")
    return column.astype(np.int64, copy=False)


def _attribute_column(name: str, objects: tuple[Any, ...]) -> Numbers:
    """Return an attribute of all objects as an array; objects that lack it have the default of ``Split``."""
    blank = getattr(Split, name)
    values = [getattr(split, name, blank) for split in objects]
    if name in _UNKNOWN:
        values = [-1 if value is None else value for value in values]
    column = np.asarray(values, dtype=None if values else np.int64)
    if column.dtype.kind not in "iufb":  # integers beyond 64 bits, or other objects
        column = column.astype(np.float64)
    return column.astype(bool) if name == "streaming" else column


def _total(values: Numbers) -> int:
    known = values[values >= 0]
    if known.dtype.kind == "f":  # add floats in order, so that totals stay reproducible
        return sum(known.tolist())
    return int(known.sum())


class Places:
    """Finds the position of a split by its file and start.

    ``duplicate`` has the positions of the first two splits with the same file and start, or is None.
    """

    def __init__(self, table: SplitTable) -> None:
        self._file, self._start = table.column("file"), table.column("start")
        self._order: Index | None = None
        self.duplicate: tuple[int, int] | None = None
        if not np.array_equal(self._file, np.arange(len(table))):  # otherwise split i is the only split of file i
            self._order = order = np.lexsort((self._start, self._file))
            self._file, self._start = self._file[order], self._start[order]
            same = np.flatnonzero((self._file[1:] == self._file[:-1]) & (self._start[1:] == self._start[:-1]))
            if len(same):
                pair = same[np.argmin(order[same + 1])]
                self.duplicate = int(order[pair]), int(order[pair + 1])

    def of(self, split: Split) -> int:
        """Return the position of a split in the table."""
        if self._order is None:
            return split.file
        low, high = np.searchsorted(self._file, (split.file, split.file + 1))
        return int(self._order[low + np.searchsorted(self._start[low:high], split.start)])
