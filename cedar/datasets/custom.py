"""Adapt any object with ``splits()`` and ``read(split)`` to the interface that cedar expects of a source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from cedar.core.boundary import as_column, table_of
from cedar.core.columns import Column, ColumnType, UnknownType, type_of
from cedar.core.dtypes import infer_type, type_from_dtype
from cedar.core.errors import CedarError, PipelineError, SourceError, invalid_call, raised
from cedar.core.printable import redact, redact_url, redacted
from cedar.core.values import ValueMismatch, build_column
from cedar.datasets.base import BaseSource, Chunk, Selects, Split, once
from cedar.datasets.rows import SAMPLE, Origin, RowTypes, build_rows, fix_types
from cedar.datasets.split_table import Places, SplitTable
from cedar.operators.base import Schema

if TYPE_CHECKING:
    import polars as pl

_ROWS = 1024  # maximum number of single rows per chunk
_ACCEPTED = "Arrow tables or record batches, polars frames, dicts of columns, lists of row dicts, or cedar Chunks"


@dataclass(frozen=True, repr=False, eq=False)
class AdaptedSource(BaseSource):
    """Wraps a custom source: adds defaults for missing methods, and converts the output of ``read`` to chunks."""

    inner: Any

    @once
    def _originals(self) -> Sequence[Any]:
        def listed() -> Sequence[Any]:
            splits = self.inner.splits()
            return splits if isinstance(splits, (SplitTable, range)) else list(splits)

        return self._asked("splits", listed)  # type: ignore[no-any-return]

    def _asked(self, name: str, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the user's source.

        Raises:
            SourceError: the method failed.
        """
        try:
            return method(*arguments)
        except CedarError:
            raise
        except raised() as error:  # user code
            raise SourceError(
                f"{self.describe()}: {name}() raised {type(error).__name__}: {error}",
                fix=f"correct {name}() of {type(self.inner).__name__}; see the exception above for the cause",
            ) from error

    @once
    def _splits(self) -> SplitTable:
        given = self._originals
        if isinstance(given, range):
            return SplitTable(file=np.arange(len(given)), part=np.arange(len(given)))
        if isinstance(given, SplitTable):
            return given
        try:
            return SplitTable.of(s if isinstance(s, Split) else _numbered(i, s) for i, s in enumerate(given))
        except (TypeError, ValueError, OverflowError) as error:
            raise PipelineError(
                f"{self.describe()}: a field of a Split is not a number: {error}",
                fix="number the files, Split(file=0), and return their names from a method url(file)",
            ) from error

    @once
    def _places(self) -> Places:
        """Return the index that finds a split's position in the list of splits by its file and start."""
        places = Places(self._splits)
        if places.duplicate is not None:
            (other, i), split = places.duplicate, self._splits[places.duplicate[1]]
            raise SourceError(
                f"{self.describe()}: splits {other} and {i} both have file {split.file} and start {split.start},"
                " so their rows would have the same keys",
                fix="number the files in Split(file=...), or their rows in Split(start=...)",
            )
        return places

    def splits(self) -> SplitTable:
        assert self._places  # checks that no split is listed twice
        return self._splits

    @property
    def original(self) -> object:
        return self.inner

    @property
    def selects(self) -> Selects:
        return "columns" if callable(getattr(self.inner, "select", None)) else ""

    def select(self, columns: Sequence[str]) -> BaseSource:
        """Return a source with the same rows that reads only ``columns``."""
        return adapt(self._asked("select", self.inner.select, list(columns)))

    def prune(self, split: Split, predicate: pl.Expr) -> bool:
        """Return True if the source reports that no row of the split satisfies the predicate."""
        prune = getattr(self.inner, "prune", None) if self.selects else None
        return prune is not None and bool(
            self._asked("prune", prune, self._originals[self._places.of(split)], predicate)
        )

    def read(self, split: Split) -> Iterator[Chunk]:
        place = self._places.of(split)
        origin = self._origin(place)
        pieces = self._pieces(place)
        if place == 0:  # the first rows of split 0 determine the types; do not read them twice
            head = _head(pieces)
            if "_row_types" not in self.__dict__ and any(isinstance(piece, list) for piece in head):
                self.__dict__["_row_types"] = self._types_of(head)
            pieces = chain(head, pieces)
        row = split.start
        stated_rows = self._splits.rows[place]  # -1 if the split does not state its rows
        for piece in pieces:
            chunk = self._chunk(piece, origin, row)
            row += chunk.rows
            if 0 <= stated_rows < row - split.start:  # check before yielding, as the caller may stop here
                raise _miscounted(split, origin, stated_rows, row - split.start, "at least ")
            yield chunk
        if row - split.start < stated_rows:
            raise _miscounted(split, origin, stated_rows, row - split.start)

    def _origin(self, place: int) -> Origin:
        file = int(self._splits.column("file")[place])
        return Origin(f"{self.url(file)}, split {place}", file, "row")

    def _pieces(self, place: int) -> Iterator[Any]:
        """Yield the output of the user's ``read``, with single rows collected into lists."""
        iterator = self._guarded(self._originals[place], self._origin(place).url)
        size = SAMPLE
        rows: list[Any] = []
        for piece in iterator:
            if _is_row(piece):
                rows.append(piece)
                if len(rows) < size:
                    continue
                yield rows
                rows, size = [], _ROWS
            else:
                if rows:
                    yield rows
                    rows = []
                yield piece
        if rows:
            yield rows

    def _guarded(self, original: Any, name: str) -> Iterator[Any]:
        try:
            pieces = self.inner.read(original)
            single = isinstance(pieces, (pa.Table, pa.RecordBatch, Mapping, Chunk)) or _is_frame(pieces)
            yield from [pieces] if single else pieces
        except CedarError:
            raise
        except raised() as error:  # user code
            cause = redacted(error)
            raise SourceError(f"{name}: read() raised {type(error).__name__}: {error}") from cause

    # ---- conversion to columns ---------------------------------------------------------------------------------------

    def _chunk(self, piece: Any, origin: Origin, row: int) -> Chunk:
        if isinstance(piece, Chunk):
            return Chunk(self._columns(piece.columns, origin, row), piece.offsets, piece.length, piece.files)
        if _is_frame(piece):
            piece = table_of(piece, origin.url, None)
        if isinstance(piece, (pa.Table, pa.RecordBatch)):
            columns = {n: piece.column(i) for i, n in enumerate(piece.schema.names)}
            return Chunk(self._columns(columns, origin, row), length=piece.num_rows)
        if isinstance(piece, Mapping):
            return Chunk(self._columns(piece, origin, row), length=None if piece else 0)
        if isinstance(piece, list) and all(isinstance(r, Mapping) for r in piece):
            types = RowTypes("dict", self._row_types)
            return Chunk(self._columns(build_rows(piece, types, origin, row), origin, row), length=len(piece))
        raise SourceError(
            f"{origin.url}: read() yields {type(piece).__name__}",
            fix=f"yield {_ACCEPTED}; see cedar.datasets.base.Source",
        )

    def _columns(self, given: Mapping[str, Any], origin: Origin, row: int) -> dict[str, Column]:
        known = self._declared or self.__dict__.get("_seen") or {}
        columns = {n: _column(n, v, known.get(n), origin, row) for n, v in given.items()}
        types = {n: type_of(c) for n, c in columns.items()}
        lengths = {n: len(c) for n, c in columns.items()}
        if len(set(lengths.values())) > 1:
            raise SourceError(f"{origin.url}: columns differ in length: {lengths}")
        self._check(types, known, origin)
        self.__dict__.setdefault("_seen", types)
        return columns

    def _check(self, types: Mapping[str, ColumnType], known: Mapping[str, ColumnType], origin: Origin) -> None:
        if known and types != {n: types.get(n) if isinstance(k, UnknownType) else k for n, k in known.items()}:
            name = next(n for n in [*known, *types] if types.get(n) != known.get(n))
            kind, wanted = types.get(name), known.get(name)
            raise SourceError(
                f"{origin.url}: column {name!r} is {kind or 'missing'} here but was {wanted or 'missing'} before",
                fix="yield the same columns with the same types from every split",
            )

    @once
    def _declared(self) -> dict[str, ColumnType]:
        """Return the types that the custom source's ``schema()`` declares; empty if it has none."""
        schema = getattr(self.inner, "schema", None)
        declared = self._asked("schema", schema) if callable(schema) else schema
        if isinstance(declared, pa.Schema):
            declared = dict(zip(declared.names, declared.types, strict=True))
        kinds = declared or {}
        return {n: k if isinstance(k, UnknownType) else type_from_dtype(k) for n, k in kinds.items()}

    @once
    def _row_types(self) -> dict[str, ColumnType]:
        """Return the types of row dicts: as declared, or inferred from the first 64 rows of split 0."""
        return self._types_of(_head(self._pieces(0)))

    def _types_of(self, head: list[Any]) -> dict[str, ColumnType]:
        if self._declared and not any(isinstance(k, UnknownType) for k in self._declared.values()):
            return self._declared
        rows = [row for piece in head if isinstance(piece, list) for row in piece]
        return fix_types(rows[:SAMPLE], self._origin(0), self._splits[0].start).kinds

    # ---- defaults for optional methods -------------------------------------------------------------------------------

    def schema(self) -> Schema:
        return dict(self._declared) or None

    def url(self, file: int) -> str:
        url = getattr(self.inner, "url", None)
        return redact_url(str(self._asked("url", url, file))) if callable(url) else self.describe()

    def digest(self) -> str:
        digest = getattr(self.inner, "digest", None)
        return str(self._asked("digest", digest)) if callable(digest) else f"{len(self._splits)} splits"

    def identity(self) -> str | None:
        kind = type(self.inner)
        own = callable(getattr(self.inner, "digest", None))
        return f"{kind.__module__}.{kind.__qualname__} {self.digest()}" if own else None

    @property
    def row_bytes(self) -> float | None:
        width = getattr(self.inner, "row_bytes", None)
        return None if width is None else float(width)

    def describe(self) -> str:
        describe = getattr(self.inner, "describe", None)
        return redact(str(describe())) if callable(describe) else f"from_source({type(self.inner).__name__})"


def _numbered(index: int, split: Any) -> Split:
    rows, size = getattr(split, "rows", None), getattr(split, "bytes", None)
    return Split(
        index, rows=rows if isinstance(rows, int) else None, bytes=size if isinstance(size, int) else None, part=index
    )


def _miscounted(split: Split, origin: Origin, stated_rows: int, read_rows: int, least: str = "") -> SourceError:
    """Return the error for a split whose row count is incorrect; cedar would lose rows if it ignored this."""
    return SourceError(
        f"{origin.url} (file {split.file}, start {split.start}): the split states {stated_rows} rows, but read()"
        f" returned {least}{read_rows}",
        done="stopped, since ranks and resuming rely on the row counts of splits",
        fix="set the correct number in Split(rows=...), or omit it if it is unknown",
    )


def _head(pieces: Iterator[Any]) -> list[Any]:
    """Return the pieces that determine types: lists with 64 rows in total, up to the first piece that is not a list."""
    head: list[Any] = []
    rows = 0
    for piece in pieces:
        head.append(piece)
        rows += len(piece) if isinstance(piece, list) else SAMPLE
        if rows >= SAMPLE:
            break
    return head


def _is_frame(value: Any) -> bool:
    return hasattr(value, "get_columns") and hasattr(value, "to_arrow")


def _is_row(piece: Any) -> bool:
    """Return whether a piece is a single row: a dict with a value that cannot be a column, such as a number."""
    return isinstance(piece, Mapping) and any(
        v is None or isinstance(v, (str, bytes, int, float, np.generic, Mapping)) for v in piece.values()
    )


def _column(name: str, value: Any, kind: ColumnType | None, origin: Origin, row: int) -> Column:
    if isinstance(value, (list, tuple, range)):
        values = list(value)
        try:
            fixed = infer_type(values[:SAMPLE]) if kind is None or isinstance(kind, UnknownType) else kind
            return build_column(values, fixed)
        except ValueMismatch as misfit:
            raise origin.error(f"column {name!r}: {misfit.message}", row + misfit.index) from misfit
    try:
        column = as_column(value)
        len(column)
    except (TypeError, pa.ArrowException) as error:
        raise SourceError(f"{origin.url}: column {name!r}: {error}") from error
    return column


def adapt(source: Any) -> BaseSource:
    """Return ``source`` with all methods that cedar expects of a source.

    Args:
        source: an object with ``splits()`` and ``read(split)``; see ``cedar.datasets.base.Source``.

    Raises:
        PipelineError: a method is missing.

    Examples:
        >>> class Squares:
        ...     def splits(self):
        ...         return [range(0, 3), range(3, 5)]
        ...     def read(self, split):
        ...         yield {"x": [i * i for i in split]}
        >>> source = adapt(Squares())
        >>> [chunk.columns["x"].to_pylist() for split in source.splits() for chunk in source.read(split)]
        [[0, 1, 4], [9, 16]]
    """
    if isinstance(source, BaseSource):
        return source
    missing = [m for m in ("splits", "read") if not callable(getattr(source, m, None))]
    if missing or isinstance(source, type):
        problem = (
            "is a class: give an instance" if isinstance(source, type) else f"has no {' and no '.join(missing)} method"
        )
        name = source.__name__ if isinstance(source, type) else type(source).__name__
        raise invalid_call(
            f"from_source: {name} {problem}",
            fix=f"a source has splits(), a list of pieces, and read(split), which yields {_ACCEPTED}",
        )
    return AdaptedSource(source)
