"""The interface of sources: data that cedar reads split by split.

A custom source needs two methods, ``splits()`` and ``read(split)``; ``cedar.datasets.custom.adapt`` turns it into a
``BaseSource``, which declares everything that cedar asks of a source. A source only describes the data; the process
that handles a split reads it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    overload,
    runtime_checkable,
)

import numpy as np

from cedar.core.columns import Column, Index
from cedar.core.errors import CedarError, RowError, SourceError, missing_column
from cedar.core.process import Lock
from cedar.operators.base import Effects, Operator, Schema

if TYPE_CHECKING:
    import polars as pl

    from cedar.datasets.split_table import Numbers, SplitTable

T = TypeVar("T")
LOST = -1  # ``Split.part`` of the only split of a lost (unreadable) file
GONE = -2  # ``Split.part`` for splits of a file that was removed during the epoch and whose row count is known
UNCOUNTED = -3  # ``Split.part`` for splits of a removed file if the row count is unknown or positions do not count rows
ONE_SLOT = -4  # like UNCOUNTED, where positions count each such split as one slot, as windows and mixtures do
SKIPPABLE = "; loader(on_error=cedar.Skip(files=True)) skips files that cannot be read"
Selects: TypeAlias = Literal["", "columns", "fields"]


@dataclass(frozen=True)
class Split:
    """A small, picklable description of a piece of a source: the unit of reading.

    Args:
        file: index of the file or other input that the split belongs to; it is part of each row's key.
        start: the first row's index in the file, or its byte offset if rows are lines of text.
        stop: one past the last row or byte; None reads to the end.
        rows: the number of rows if it is known from metadata, else None.
        bytes: the decoded size in bytes, exact or estimated from metadata; None if unknown.
        part: an integer that the source assigns, such as the index of the row group.
        streaming: True when the split may be large and can only be read from its beginning, chunk by chunk.
    """

    file: int = 0
    start: int = 0
    stop: int | None = None
    rows: int | None = None
    bytes: int | None = None
    part: int = 0
    streaming: bool = False


@dataclass(frozen=True)
class Chunk:
    """Rows that a source delivers: columns, and each row's index (or byte offset) in its file.

    ``offsets`` is int64[rows]; None numbers rows consecutively from the split's ``start``. ``files`` is int64[rows],
    the index of each row's file; None means the split's file.
    """

    columns: dict[str, Column]
    offsets: Index | None = None
    length: int | None = None  # needed only when there are no columns
    files: Index | None = None

    @property
    def rows(self) -> int:
        return self.length if self.length is not None else len(next(iter(self.columns.values())))


@runtime_checkable
class Source(Protocol):
    """The minimum interface of a source.

    ``splits()`` lists the pieces from metadata in a fixed order. They can be any picklable objects; ``Split`` works
    best, and a ``SplitTable`` if there are very many.
    ``read(split)`` returns an iterable of Arrow tables or record batches, dicts of columns, lists of row dicts, or
    ``Chunk``. Reading a split twice must give the same rows.

    Optional: ``schema()`` -> dict of name to Arrow type (or None), ``url(file)`` -> str, ``digest()`` -> str that
    changes when the data does but not when it moves, ``row_bytes`` (estimate), ``select(columns)`` -> Source with the
    same splits, and together with it ``prune(split, predicate)`` -> bool, true if no row of the split satisfies a
    polars expression. With ``select``, cedar pushes filters and projections down into reading.
    """

    def splits(self) -> Sequence[Any]: ...

    def read(self, split: Any) -> Iterable[Any]: ...


class BaseSource(ABC):
    """Everything that cedar asks of a source. The defaults suit a source that only lists splits and reads them."""

    # ---- capabilities; the defaults are the safe choice ----
    one_pass: ClassVar[bool] = False  # a pass may be expensive: change plans only between epochs, and do not read again
    holds_objects: ClassVar[bool] = False  # two reads may return the same object, which functions may have modified
    cuts_splits: ClassVar[bool] = False  # a part of a split can be read by itself
    second_read_cost_bytes: ClassVar[float | None] = None  # overhead of reading other columns later; None: no such read
    reports_bad_rows: ClassVar[bool] = False  # has ``read_valid_rows``
    reads_files: ClassVar[bool] = False  # has ``skipping_damaged``
    tolerant = False  # skips damaged files: the result of ``skipping_damaged``

    # ---- set if the source was restored from a state: see ``as_saved`` ----
    altered: ClassVar[Mapping[int, str]] = {}  # file -> how it differs since then, if positions may not fit its rows
    saved_row_bytes: ClassVar[tuple[float | None, ...]] = ()  # the estimate at that time

    @property
    def own_code(self) -> bool:
        """Return whether reading runs user code."""
        return True

    @property
    def per_row(self) -> bool:
        """Return whether reading runs Python code once per row."""
        return False

    @property
    def selects(self) -> Selects:
        """Return what ``select`` accepts: names of columns, also fields of structs as "a.b", or "" for nothing."""
        return ""

    @property
    def reads_columns_separately(self) -> bool:
        """Return whether reading a few columns costs much less than reading all."""
        return False

    @property
    def row_bytes(self) -> float | None:
        """Return the estimated decoded bytes of a row from metadata; None if they are only known after reading."""
        return None

    @property
    def original(self) -> object:
        """Return the object that the user passed to ``from_source``; otherwise the source itself."""
        return self

    # ---- splits and rows ----

    @abstractmethod
    def splits(self) -> Sequence[Split]:
        """Return the splits, using only metadata."""

    @abstractmethod
    def read(self, split: Split) -> Iterator[Chunk]:
        """Yield the rows of a split."""

    def reads_rows(self, split: Split) -> bool:
        """Return whether ``read_rows`` takes less time than ``read``."""
        return False

    def read_rows(self, split: Split, wanted: Index) -> Iterator[Chunk]:
        """Yield the rows at the ascending positions ``wanted`` of a split."""
        raise NotImplementedError

    def read_valid_rows(self, split: Split) -> Iterator[tuple[Chunk, dict[int, RowError]]]:
        """Read a split as ``read`` does, but return the errors of failed rows by row number instead of raising."""
        raise NotImplementedError

    def read_whole(self, split: Split) -> Iterator[Chunk]:
        """Read a split like ``read``; for the split of a lost file, raise that file's error."""
        return self.read(split)

    def pieces(self, split: Split, first: int) -> Sequence[Split]:
        """Return splits that read the rows from number ``first`` on separately; none if the split cannot be divided."""
        return ()

    def schema(self) -> Schema:
        """Return column names and canonical types from metadata, or None if they are only known after reading."""
        return None

    # ---- what metadata show about the rows of a split ----

    def prune(self, split: Split, predicate: pl.Expr) -> bool:
        """Return True if metadata show that no row of the split satisfies the predicate."""
        return False

    def count_matching_rows(self, splits: SplitTable, predicate: pl.Expr) -> Numbers | None:
        """Return how many rows of each split satisfy the predicate, int64[splits]; None if it needs more metadata."""
        return None

    def row_keys(self, split: Split) -> tuple[Index, Index] | None:
        """Return file index and row index of each row, int64[rows] each; None if metadata do not contain them."""
        return None

    # ---- sources over the same rows ----

    def select(self, columns: Sequence[str]) -> BaseSource:
        """Return a source with the same splits that reads only ``columns``; see ``selects``."""
        raise NotImplementedError

    def with_repeating(self, names: frozenset[str]) -> BaseSource:
        """Return a source for reading with many equal values in these columns, such as in larger chunks."""
        return self

    # ---- names ----

    def url(self, file: int) -> str:
        """Return the name of the file with index ``file``, for error messages."""
        return f"{self.describe()}"

    def url_of(self, file: int, row: int) -> str:
        """Return the name of the file that contains a row, for error messages; splits may span several files."""
        return self.url(file)

    def file_ids(self) -> Index | None:
        """Return the id of each file in row keys, int64[files]; None to use the file indices of splits."""
        return None

    def digest(self) -> str:
        """Return a digest that changes when the data does (file names, sizes, row counts), but not when it moves."""
        return ""

    def identity(self) -> str | None:
        """Return a string that identifies exactly this data across runs, for persistent caches; None if unknown."""
        return None

    def describe(self) -> str:
        """Return a short one-line description for plans and messages, such as ``read_parquet(clicks/*.parquet)``."""
        return type(self).__name__

    def __repr__(self) -> str:
        return self.describe()


@dataclass(frozen=True)
class Read(Operator):
    """The operator at the bottom of every pipeline; it reads a source."""

    source: BaseSource
    name = "read"
    inputs = 0

    def label(self) -> str:
        return self.source.describe()

    def effects(self) -> Effects:
        return Effects(frozenset(), None, per_row=self.source.per_row)

    def schema(self, *inputs: Schema) -> Schema:
        return self.source.schema()

    @property
    def calls_functions(self) -> bool:
        return self.source.own_code

    def parameters(self) -> dict[str, Any]:
        return {"source": self.source.digest()}


def numbered_rows(split: Split) -> tuple[Index, Index]:
    """Return the file index and row index of each row of a split, int64[rows] each; ``start`` must be a row index.

    Sources return this from ``row_keys(split)``, so that ``Pipeline.split`` can count rows without reading data.

    Examples:
        >>> files, rows = numbered_rows(Split(file=2, start=10, rows=3))
        >>> files.tolist(), rows.tolist()
        ([2, 2, 2], [10, 11, 12])
    """
    count = split.rows or 0
    return np.full(count, split.file, dtype=np.int64), np.arange(split.start, split.start + count, dtype=np.int64)


class Versioned(ABC):
    """A source that reads one version of a table; a loaded state may change the version unless the user chose it.

    Attributes:
        snapshot: number of the version.
        reopen: returns the source of another version; None if the user chose this one.
    """

    snapshot: int
    reopen: Callable[[int], Any] | None

    @abstractmethod
    def at(self, snapshot: int) -> Self:
        """Return this source with the files of another version, such as the one in a saved state.

        Raises:
            SourceError: the table no longer has this version.
        """


def offsets_of(chunk: Chunk, start: int) -> Index:
    """Return the row indices of a chunk; without ``offsets``, they are consecutive from ``start``."""
    if chunk.offsets is not None:
        return chunk.offsets
    return np.arange(start, start + chunk.rows, dtype=np.int64)


def skippable(error: CedarError) -> None:
    """Add to the error of a damaged file the hint that ``on_error`` can skip such files."""
    if isinstance(error, (SourceError, RowError)) and SKIPPABLE not in (error.fix or ""):
        error.fix = f"{error.fix or 'fix the file'}{SKIPPABLE}"


def rows_may_fail(source: BaseSource) -> bool:
    """Return whether ``on_error`` may skip rows during reading: bad rows, or the rest of a damaged file."""
    return source.reports_bad_rows or source.tolerant


def file_ids(source: BaseSource, files: Index) -> Index:
    """Return the file ids that row keys contain: hashes of file names, or file indices if the source has no names."""
    known = source.file_ids()
    return files if known is None else known[files]


def row_bytes_of(source: BaseSource) -> float | None:
    """Return the estimated bytes of a row; if the source was restored from a state, the estimate in the state."""
    return source.saved_row_bytes[0] if source.saved_row_bytes else source.row_bytes


def url_of_row(source: BaseSource, file: int, row: int) -> str:
    """Return the name of a row's file for messages; ``file`` and ``row`` are the row's key."""
    known = source.file_ids()
    number = file if known is None else next(iter(np.flatnonzero(known == file).tolist()), None)
    return source.describe() if number is None else source.url_of(number, row)


def selected(types: Mapping[str, T], columns: Sequence[str] | None, source: str) -> dict[str, T]:
    """Return the types of ``columns``, in the order of ``columns``; None selects all columns.

    Raises:
        PipelineError: ``source`` has no such column.
    """
    for name in columns or ():
        if name not in types:
            raise missing_column(name, list(types), source)
    return {name: types[name] for name in (types if columns is None else columns)}


class once(cached_property[T]):  # noqa: N801 - used as a decorator, next to cached_property
    """``functools.cached_property`` with a lock per instance; pickling an instance includes its cached values."""

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> T: ...
    def __get__(self, instance: object, owner: type[Any] | None = None) -> Self | T:
        if instance is None:
            return self
        with instance.__dict__.setdefault("_once", Lock()):
            return super().__get__(instance, owner)
