"""Sources: what can be read, split by split.

A user's own source needs two methods, ``splits()`` and ``read(split)``; everything else is optional and found by
``getattr``. Sources describe; reading happens where the split is processed.
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

LOST = -1  # the part of the one split of a lost file
GONE = -2  # the part, or below, of the splits of a file that was taken out in the middle of an epoch
UNCOUNTED = -3  # of such a file, if nothing counts rows
SKIPPABLE = "; loader(on_error=cedar.Skip(files=True)) continues without what cannot be read"

T = TypeVar("T")


@dataclass(frozen=True)
class Split:
    """A small, picklable description of a piece of a source: the unit of reading.

    Args:
        file: number of the file, or of what else the source reads; part of the row key if there are no files.
        start: the first row's number in the file, or its byte offset where rows are lines of text.
        stop: one past the last row or byte; None to the end.
        rows: the number of rows where metadata tells, else None.
        bytes: decoded bytes where metadata tells or allows an estimate, else None.
        part: the source's own number for it, such as the row group.
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
    """Rows as a source hands them over: columns, and each row's number (or byte offset) in its file.

    ``offsets`` is int64[rows]; None counts on from the split's ``start``. ``files`` is int64[rows], the number of each
    row's file; None if all are of the split's.
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
    """The least that a source must be.

    ``splits()`` lists the pieces from metadata, in a fixed order; any picklable objects will do, ``Split`` is best, and
    of very many a ``SplitTable``.
    ``read(split)`` returns an iterable of Arrow tables or record batches, dicts of columns, lists of row dicts, or
    ``Chunk``. Reading a split twice gives the same rows.

    Optional: ``schema()`` -> dict of name to Arrow type (or None), ``url(file)`` -> str, ``digest()`` -> str that
    changes when the data does and not when it moves, ``row_bytes`` (estimate), ``select(columns)`` -> Source
    with the same splits, and next to it ``prune(split, predicate)`` -> bool, true where no row of the split satisfies a
    polars expression. With ``select``, filters and projections above become part of reading.
    """

    def splits(self) -> Sequence[Any]: ...

    def read(self, split: Any) -> Iterable[Any]: ...


class BaseSource(ABC):
    """Defaults for the sources of the package: subclass, and override what the format knows better."""

    own_code: ClassVar[bool] = True  # reading runs code of the user's

    @abstractmethod
    def splits(self) -> Sequence[Split]:
        """The pieces, from metadata."""

    @abstractmethod
    def read(self, split: Split) -> Iterator[Chunk]:
        """The rows of a piece."""

    def schema(self) -> Schema:
        """Names and canonical types from metadata, or None if only reading can tell."""
        return None

    def url(self, file: int) -> str:
        """What error messages call file number ``file``."""
        return f"{self.describe()}"

    def url_of(self, file: int, row: int) -> str:
        """What error messages call the file of one row, where a file ordinal alone does not tell."""
        return self.url(file)

    @property
    def row_bytes(self) -> float | None:
        """Decoded bytes of a row, estimated from metadata; None if only reading can tell."""
        return None

    def digest(self) -> str:
        """Changes when the data changes (names within the listing, sizes, row counts), not when it moves."""
        return ""

    def identity(self) -> str | None:
        """Stands for these very data, for a cache that outlives the run; None if only reading can tell."""
        return None

    def describe(self) -> str:
        """One short line for plans and messages, such as ``read_parquet(clicks/*.parquet)``."""
        return type(self).__name__


@dataclass(frozen=True)
class Read(Operator):
    """The operator at the bottom of every pipeline: a source."""

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
    """The files and the numbers of a split's rows, int64[rows] each, where rows are numbered within their file.

    What sources return of ``row_keys(split)``: then the rows of ``Pipeline.split`` are counted from metadata.

    Examples:
        >>> files, rows = numbered_rows(Split(file=2, start=10, rows=3))
        >>> files.tolist(), rows.tolist()
        ([2, 2, 2], [10, 11, 12])
    """
    count = split.rows or 0
    return np.full(count, split.file, dtype=np.int64), np.arange(split.start, split.start + count, dtype=np.int64)


def offsets_of(chunk: Chunk, start: int) -> Index:
    """The row numbers of a chunk whose first row is number ``start``."""
    if chunk.offsets is not None:
        return chunk.offsets
    return np.arange(start, start + chunk.rows, dtype=np.int64)


def skippable(error: CedarError) -> None:
    """Let the error of a damaged file say that there is a policy for it."""
    if isinstance(error, (SourceError, RowError)) and SKIPPABLE not in (error.fix or ""):
        error.fix = f"{error.fix or 'fix the file'}{SKIPPABLE}"


def rows_may_fail(source: Any) -> bool:
    """Under a policy, rows may be skipped as they are read: such as cannot be made, or the rest of a damaged file."""
    return hasattr(source, "read_sound") or getattr(source, "tolerant", False)


def file_ids(source: Any, files: Index) -> Index:
    """What row keys call files: by a hash of their names, or by their numbers where the source has none."""
    known: Callable[[], Index] | None = getattr(source, "file_ids", None)
    return files if known is None else known()[files]


def row_bytes_of(source: Any) -> float | None:
    """Estimated bytes of a row: as a state gives them, where a source is read as it was saved, or what the source
    says.
    """
    saved = getattr(source, "told_row_bytes", ())
    return saved[0] if saved else getattr(source, "row_bytes", None)


def url_of_row(source: Any, file: int, row: int) -> str:
    """What messages call the file of a row, by its key."""
    known = getattr(source, "file_ids", None)
    number = file if known is None else next(iter(np.flatnonzero(known() == file).tolist()), None)
    if number is None:
        return str(source.describe())
    find = getattr(source, "url_of", None)
    return str(source.url(number) if find is None else find(number, row))


def selected(types: Mapping[str, T], columns: Sequence[str] | None, source: str) -> dict[str, T]:
    """The types of these columns, in this order; of all columns if none are named.

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
