"""Counts values in bounded memory: what does not fit is spilled, apart by a hash, and added up part by part."""

from __future__ import annotations

import os
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.types as pt

from cedar.core.errors import PipelineError
from cedar.core.ownership import remove_tree, temporary_folder

_KIND = "counts"
_PARTS = 64


class Counter:
    """How often each value of a column was seen.

    Args:
        name: of the column.
        limit: bytes of counts before they are spilled.
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
        """Count more values; of lists, their items.

        Raises:
            PipelineError: no whole numbers and no strings.
        """
        while pt.is_large_list(column.type) or pt.is_list(column.type) or pt.is_fixed_size_list(column.type):
            column = column.flatten()
        if not (pt.is_integer(column.type) or pt.is_large_string(column.type) or pt.is_string(column.type)):
            raise PipelineError(
                f"a vocabulary of column {self.name!r}: it holds {column.type}",
                fix="whole numbers or strings, or lists",
            )
        values = pl.Series("value", column)
        values = values.cast(pl.Int64) if values.dtype.is_integer() and values.dtype != pl.UInt64 else values
        values = values.drop_nulls()
        self._seen += len(values)
        self._keep(values.value_counts(name="count").with_columns(pl.col("count").cast(pl.Int64)))
        if self._bytes > self._limit:
            held = _added(self._held)
            self._held, self._bytes = [], 0
            if held.estimated_size() * 2 > self._limit:
                self._spill(held)
            else:
                self._keep(held)

    def _keep(self, counts: pl.DataFrame) -> None:
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
        """(values seen at least so often, the most frequent first; their counts; how many were seen in all)."""
        if self._folder is not None and self._held:
            self._spill(_added(self._held))
            self._held = []
        parts = []
        for held in self._parts():
            counts = _added(held).filter(pl.col("count") >= least)
            parts.append(counts if most is None else _ordered(counts).head(most))
        counts = _ordered(pl.concat(parts)) if parts else pl.DataFrame({"value": [], "count": []}, _EMPTY)
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
        """Remove what was spilled."""
        if self._folder is not None:
            remove_tree(self._folder, _KIND)
            self._folder = None


_EMPTY: Any = {"value": pl.Int64, "count": pl.Int64}


def _added(held: list[pl.DataFrame]) -> pl.DataFrame:
    return pl.concat(held).group_by("value").agg(pl.col("count").sum())


def _ordered(counts: pl.DataFrame) -> pl.DataFrame:
    return counts.sort("count", "value", descending=[True, False])


def _arrow(series: pl.Series) -> pa.Array:
    array = series.to_arrow()
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    return array.cast(pa.large_string()) if pt.is_string_view(array.type) else array
