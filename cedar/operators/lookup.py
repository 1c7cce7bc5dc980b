"""Lookup of rows in the right-hand table of a join, which is sorted by key hash.

Polars joins each block only with the table rows whose key hashes occur in the block. Since polars compares the keys
themselves, hash collisions do not change the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from cedar.core.boundary import as_columns, to_frame
from cedar.core.columns import Index
from cedar.core.errors import PipelineError
from cedar.operators.stored import StoredTable

if TYPE_CHECKING:
    import polars as pl

HASH_COLUMN = "__hash"  # the column of hashes of each row's keys
_SHOWN = 3


def key_hashes(frame: pl.DataFrame) -> Any:
    """Return a hash of each row, uint64[rows]; equal keys have equal hashes, even if their integer widths differ."""
    import polars as pl

    def wide(name: str, kind: Any) -> pl.Expr:
        if kind.is_integer():
            return pl.col(name).cast(pl.Int64, wrap_numerical=True)
        return pl.col(name).cast(pl.Float64) if kind.is_float() or kind.is_decimal() else pl.col(name)

    return frame.select(wide(name, kind) for name, kind in frame.schema.items()).hash_rows(0).to_numpy()


def arranged(columns: Mapping[str, Any], keys: Sequence[str], unique: bool, time: str | None = None) -> pa.Table:
    """Return the rows with non-null keys, ordered by hashes of ``keys``, then by ``time`` if given.

    Args:
        columns: the table's Arrow columns.
        keys: the names of the key columns.
        unique: whether two rows with the same keys are an error.
        time: the time column of ``join_asof``.

    Raises:
        PipelineError: ``unique`` is True and two rows have the same keys.
    """
    import polars as pl

    arrays = as_columns(columns)
    frame = to_frame({name: arrays[name] for name in (*keys, *([] if time is None else [time]))})
    valid = ~pl.any_horizontal(pl.col(name).is_null() for name in frame.columns)
    if time is not None and frame.schema[time].is_float():
        valid &= ~pl.col(time).is_nan()
    rows = frame.with_row_index(HASH_COLUMN + "row").filter(valid)
    hashes = pl.Series(HASH_COLUMN, key_hashes(rows.select(keys)) if keys else np.zeros(len(rows), dtype=np.uint64))
    by = [HASH_COLUMN] if time is None else [HASH_COLUMN, time]
    rows = rows.with_columns(hashes).sort(by, maintain_order=True)
    if unique:
        found = rows[HASH_COLUMN].to_numpy()
        same = np.concatenate([[False], found[1:] == found[:-1]])
        _refuse_duplicates(rows.filter(pl.Series(same | np.append(same[1:], False))).select(keys))
    order = pa.array(rows[HASH_COLUMN + "row"].to_numpy().astype(np.int64))
    made = {name: array.take(order) for name, array in arrays.items()}
    return pa.table(made | {HASH_COLUMN: pa.array(rows[HASH_COLUMN].to_numpy())})


def _refuse_duplicates(keys: pl.DataFrame) -> None:
    twice = keys.filter(keys.is_duplicated())
    if len(twice):
        shown = [row if len(row) > 1 else row[0] for row in twice.unique(maintain_order=True).head(_SHOWN).iter_rows()]
        raise PipelineError(
            f"join: {len(twice)} rows of the other table share their keys, such as {', '.join(map(repr, shown))}",
            fix='make them unique first, or give validate="m:m" for a row for each pair',
        )


def candidates(stored: StoredTable, hashes: Any) -> Index:
    """Return the indices of the table's rows that have one of these hashes, int64, ascending."""
    known = stored.numbers(HASH_COLUMN)
    asked = np.sort(hashes)  # np.unique takes ten times as long if most values differ
    asked = asked[np.append(True, asked[1:] != asked[:-1])] if len(asked) else asked
    first = np.searchsorted(known, asked)
    there = known[np.minimum(first, len(known) - 1)] == asked if len(known) else np.zeros(len(asked), dtype=bool)
    first, last = first[there], np.searchsorted(known, asked[there], side="right")
    counts = last - first
    starts = np.repeat(first - (np.cumsum(counts) - counts), counts)
    found: Index = starts + np.arange(len(starts), dtype=np.int64)
    return found


def take_rows(stored: StoredTable, names: Sequence[str], rows: pa.Array) -> dict[str, pa.Array]:
    """Return the table's columns at these row indices; a null index gives nulls."""
    table = stored.table
    return {name: _single_chunk(table.column(name)).take(rows) for name in names}


def _single_chunk(column: Any) -> pa.Array:
    return column.chunk(0) if column.num_chunks else pa.nulls(0, column.type)
