"""The interface of sources: data that cedar reads split by split.

A custom source needs two methods, ``splits()`` and ``read(split)``; cedar looks up all others with ``getattr``. A
source only describes the data; the process that handles a split reads it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np

from cedar.core.columns import Column, Index
from cedar.core.errors import CedarError, RowError, SourceError, missing_column
from cedar.operators.base import Effects, Operator, Schema

LOST = -1  # ``Split.part`` of the only split of a lost (unreadable) file
GONE = -2  # ``Split.part`` for splits of a file that was removed during the epoch and whose row count is known
UNCOUNTED = -3  # ``Split.part`` for splits of a removed file if the row count is unknown or positions do not count rows
SKIPPABLE = "; loader(on_error=cedar.Skip(files=True)) skips files that cannot be read"

T = TypeVar("T")


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
    """Defaults for the built-in sources; subclasses override methods if their format has better information."""

    own_code: ClassVar[bool] = True  # reading runs user code

    @abstractmethod
    def splits(self) -> Sequence[Split]:
        """Return the splits, using only metadata."""

    @abstractmethod
    def read(self, split: Split) -> Iterator[Chunk]:
        """Yield the rows of a split."""

    def schema(self) -> Schema:
        """Return column names and canonical types from metadata, or None if they are only known after reading."""
        return None

    def url(self, file: int) -> str:
        """Return the name of the file with index ``file``, for error messages."""
        return f"{self.describe()}"

    def url_of(self, file: int, row: int) -> str:
        """Return the name of the file that contains a row, for error messages; splits may span several files."""
        return self.url(file)

    @property
    def row_bytes(self) -> float | None:
        """Return the estimated decoded bytes of a row from metadata; None if they are only known after reading."""
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


@dataclass(frozen=True)
class Read(Operator):
    """The operator at the bottom of every pipeline; it reads a source."""

    source: Any
    name = "read"
    inputs = 0

    def label(self) -> str:
        describe = getattr(self.source, "describe", None)
        return str(describe()) if describe else f"from_source({type(self.source).__name__})"

    def effects(self) -> Effects:
        return Effects(frozenset(), None, per_row=bool(getattr(self.source, "per_row", False)))

    def schema(self, *inputs: Schema) -> Schema:
        schema = getattr(self.source, "schema", None)
        return schema() if schema is not None else None

    @property
    def calls_functions(self) -> bool:
        return bool(getattr(self.source, "own_code", True))

    def parameters(self) -> dict[str, Any]:
        digest = getattr(self.source, "digest", None)
        return {"source": digest() if digest is not None else ""}


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


def offsets_of(chunk: Chunk, start: int) -> Index:
    """Return the row indices of a chunk; without ``offsets``, they are consecutive from ``start``."""
    if chunk.offsets is not None:
        return chunk.offsets
    return np.arange(start, start + chunk.rows, dtype=np.int64)


def skippable(error: CedarError) -> None:
    """Add to the error of a damaged file the hint that ``on_error`` can skip such files."""
    if isinstance(error, (SourceError, RowError)) and SKIPPABLE not in (error.fix or ""):
        error.fix = f"{error.fix or 'fix the file'}{SKIPPABLE}"


def rows_may_fail(source: Any) -> bool:
    """Return whether ``on_error`` may skip rows during reading: bad rows, or the rest of a damaged file."""
    return hasattr(source, "read_valid_rows") or getattr(source, "tolerant", False)


def file_ids(source: Any, files: Index) -> Index:
    """Return the file ids that row keys contain: hashes of file names, or file indices if the source has no names."""
    known: Callable[[], Index] | None = getattr(source, "file_ids", None)
    return files if known is None else known()[files]


def row_bytes_of(source: Any) -> float | None:
    """Return the estimated bytes of a row; if the source was restored from a state, the estimate in the state."""
    saved = getattr(source, "saved_row_bytes", ())
    return saved[0] if saved else getattr(source, "row_bytes", None)


def url_of_row(source: Any, file: int, row: int) -> str:
    """Return the name of a row's file for messages; ``file`` and ``row`` are the row's key."""
    known = getattr(source, "file_ids", None)
    number = file if known is None else next(iter(np.flatnonzero(known() == file).tolist()), None)
    if number is None:
        return str(source.describe())
    find = getattr(source, "url_of", None)
    return str(source.url(number) if find is None else find(number, row))


def selected(types: Mapping[str, T], columns: Sequence[str] | None, source: str) -> dict[str, T]:
    """Return the types of ``columns``, in the order of ``columns``; None selects all columns.

    Raises:
        PipelineError: ``source`` has no such column.

    Examples:
        >>> selected({"a": int, "b": str}, ["b"], "read_rows()")
        {'b': <class 'str'>}
    """
    for name in columns or ():
        if name not in types:
            raise missing_column(name, list(types), source)
    return {name: types[name] for name in (types if columns is None else columns)}
