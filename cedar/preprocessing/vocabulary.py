"""Vocabularies: map frequent values of a column to rows of an embedding table."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from cedar.core.errors import CedarError, PipelineError, SourceError
from cedar.core.printable import one_line
from cedar.operators.recsys.ids import MapId
from cedar.store.files import remove_tree, temporary_folder, temporary_name

_METADATA_KEY = b"cedar.vocabulary"
Null: TypeAlias = Literal["oov", "own", "keep"]


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Maps the values of a column to ids, the most frequent values first. All other values have the id ``oov``.

    Args:
        column: name of the column that was counted.
        values: distinct int64 or strings; ``values[i]`` has the id ``i`` if ``i`` is below ``oov``, else ``i + 1``.
        counts: number of occurrences of each value, int64.
        oov: the id of all values that are not in ``values``.
        seen, rare: how many values were counted, with repetitions, and how many of these are not in ``values``.
        null: how ``transform`` maps nulls: "oov" to the id ``oov``, "own" to the last id, "keep" leaves them null.

    Examples:
        >>> import cedar
        >>> p = cedar.from_items([{"tags": [7, 7, 9]}, {"tags": [7, 9, 4]}])
        >>> words = cedar.fit(p, cedar.preprocessing.Vocabulary("tags", min_count=2))["tags"]
        >>> words.size, words.transform()([9, 4, 7])
        (3, [2, 0, 1])
    """

    column: str
    values: pa.Array
    counts: pa.Array
    oov: int = 0
    seen: int = 0
    rare: int = 0
    null: Null = "oov"

    @property
    def size(self) -> int:
        """Return the number of rows that a table needs: one per value, one for ``oov``, one for nulls with "own"."""
        return len(self.values) + 1 + (self.null == "own")

    @property
    def ids(self) -> pa.Array:
        """Return the id of each value, int64."""
        numbers = np.arange(len(self.values), dtype=np.int64)
        return pa.array(numbers + (numbers >= self.oov))

    def transform(self) -> MapId:
        """Return a function that maps values to ids, for ``p.map(vocabulary.transform(), "column")``.

        Nulls, also inside lists, are mapped as ``null`` specifies. A null list becomes an empty list, unless ``null``
        is "keep".
        """
        null = {"oov": self.oov, "own": self.size - 1, "keep": None}[self.null]
        return MapId(dict(zip(self.values.to_pylist(), self.ids.to_pylist(), strict=True)), self.oov, null)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a Parquet file with the columns ``value``, ``id`` and ``count``, atomically.

        Raises:
            SourceError: the file cannot be written.
        """
        reported = {"column": self.column, "oov": self.oov, "seen": self.seen, "rare": self.rare, "null": self.null}
        table = pa.table({"value": self.values, "id": self.ids, "count": self.counts})
        table = table.replace_schema_metadata({_METADATA_KEY: json.dumps(reported).encode()})
        path = os.fspath(path)
        try:
            pq.write_table(table, fresh := temporary_name(path), compression="zstd")
            os.replace(fresh, path)
        except OSError as error:
            raise SourceError(f"cannot write {path}: {error}", fix="check space and permissions") from error

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Vocabulary:
        """Read a file that ``save`` wrote.

        Raises:
            SourceError: the file does not exist, or is not a vocabulary.
        """
        try:
            table = pq.read_table(os.fspath(path)).combine_chunks()
            reported = json.loads((table.schema.metadata or {})[_METADATA_KEY])
        except (OSError, pa.ArrowException, KeyError, ValueError) as error:
            raise SourceError(
                f"{os.fspath(path)} is not a vocabulary: {error}", fix="create one: cedar data vocab"
            ) from error
        values, counts = (_array(table.column(name)) for name in ("value", "count"))
        values = values.cast(pa.large_string()) if pt.is_string(values.type) else values
        null = reported.get("null", "oov")
        return Vocabulary(reported["column"], values, counts, reported["oov"], reported["seen"], reported["rare"], null)

    def __str__(self) -> str:
        share = self.rare / max(self.seen, 1)
        return f"{one_line(self.column)}: {len(self.values):,} values, {share:.2%} of {self.seen:,} are not in it"


def _array(column: Any) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not isinstance(column, pa.Array):
        raise CedarError(f"a vocabulary needs numbers, strings, or lists of them, not {type(column).__name__}")
    return column


# ---- counting --------------------------------------------------------------------------------------------------------


_KIND = "counts"
_PARTS = 64


class Counter:
    """Counts the occurrences of each value of a column.

    Args:
        name: the column.
        limit: maximum bytes of counts in memory, before they are spilled to files.
    """

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self._limit = limit
        self._held: list[pl.DataFrame] = []
        self._bytes = 0
        self._spills = 0
        self._folder: str | None = None
        self._seen = 0

    def add(self, column: pa.Array) -> None:
        """Count more values, or the items of lists.

        Raises:
            PipelineError: the values are neither integers nor strings.
        """
        while pt.is_large_list(column.type) or pt.is_list(column.type) or pt.is_fixed_size_list(column.type):
            column = column.flatten()
        if pt.is_null(column.type):  # only nulls
            return
        if not (pt.is_integer(column.type) or pt.is_large_string(column.type) or pt.is_string(column.type)):
            raise PipelineError(
                f"a vocabulary of column {self.name!r}: it holds {column.type}", fix="integers or strings, or lists"
            )
        values = pl.Series("value", column)
        values = values.cast(pl.Int64) if values.dtype.is_integer() and values.dtype != pl.UInt64 else values
        values = values.drop_nulls()
        self._seen += len(values)
        self._hold(values.value_counts(name="count").with_columns(pl.col("count").cast(pl.Int64)))
        if self._bytes > self._limit:
            merged = _sum_counts(self._held)
            self._held, self._bytes = [], 0
            if merged.estimated_size() * 2 > self._limit:
                self._spill(merged)
            else:
                self._hold(merged)

    def _hold(self, counts: pl.DataFrame) -> None:
        self._held.append(counts)
        self._bytes += int(counts.estimated_size())

    def _spill(self, counts: pl.DataFrame) -> None:
        if self._folder is None:
            self._folder = temporary_folder(_KIND)
        part = counts["value"].hash(seed=1) % _PARTS
        for number in range(_PARTS):
            counts.filter(part == number).write_ipc(os.path.join(self._folder, f"{number}-{self._spills}.arrow"))
        self._spills += 1

    def frequent(self, least: int, most: int | None) -> tuple[pa.Array, pa.Array, int]:
        """Return the values counted at least ``least`` times (frequent ones first), their counts, and the total."""
        if self._folder is not None and self._held:
            self._spill(_sum_counts(self._held))
            self._held = []
        parts = []
        for frames in self._parts():
            counts = _sum_counts(frames).filter(pl.col("count") >= least)
            parts.append(counts if most is None else _sort_counts(counts).head(most))
        counts = _sort_counts(pl.concat(parts)) if parts else pl.DataFrame({"value": [], "count": []}, _EMPTY)
        counts = counts if most is None else counts.head(most)
        return _arrow(counts["value"]), _arrow(counts["count"]), self._seen

    def _parts(self) -> Any:
        if self._folder is None:
            if self._held:
                yield self._held
            return
        for number in range(_PARTS):
            names = [f"{number}-{spill}.arrow" for spill in range(self._spills)]
            yield [pl.read_ipc(os.path.join(self._folder, name)) for name in names]

    def close(self) -> None:
        """Remove spilled files."""
        if self._folder is not None:
            remove_tree(self._folder, _KIND)
            self._folder = None


_EMPTY: Any = {"value": pl.Int64, "count": pl.Int64}


def _sum_counts(frames: list[pl.DataFrame]) -> pl.DataFrame:
    return pl.concat(frames).group_by("value").agg(pl.col("count").sum())


def _sort_counts(counts: pl.DataFrame) -> pl.DataFrame:
    return counts.sort("count", "value", descending=[True, False])


def _arrow(series: pl.Series) -> pa.Array:
    array = series.to_arrow()
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    return array.cast(pa.large_string()) if pt.is_string_view(array.type) else array
