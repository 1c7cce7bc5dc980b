"""Lookup: the table on the other side of a join, in the order of hashes of its keys, so that few rows are inspected.

Polars joins: a block with the rows of the table whose keys have the hash of one of its own. So a hash decides nothing.
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

HASH = "__hash"  # of the keys of a row
_SHOWN = 3


def key_hashes(frame: pl.DataFrame) -> Any:
    """uint64[rows]: equal keys have one hash, whatever the width of their type."""
    import polars as pl

    def wide(name: str, kind: Any) -> pl.Expr:
        if kind.is_integer():
            return pl.col(name).cast(pl.Int64, wrap_numerical=True)
        return pl.col(name).cast(pl.Float64) if kind.is_float() or kind.is_decimal() else pl.col(name)

    return frame.select(wide(name, kind) for name, kind in frame.schema.items()).hash_rows(0).to_numpy()


def arranged(columns: Mapping[str, Any], keys: Sequence[str], unique: bool, time: str | None = None) -> pa.Table:
    """The rows that can match, ordered by hashes of ``keys``, and by ``time`` where that is given.

    Args:
        columns: Arrow columns of the table.
        keys: which must be equal.
        unique: two rows with the same keys are an error.
        time: the column that ``join_asof`` goes by.

    Raises:
        PipelineError: two rows with the same keys.
    """
    import polars as pl

    arrays = as_columns(columns)
    frame = to_frame({name: arrays[name] for name in (*keys, *([] if time is None else [time]))})
    valid = ~pl.any_horizontal(pl.col(name).is_null() for name in frame.columns)
    if time is not None and frame.schema[time].is_float():
        valid &= ~pl.col(time).is_nan()
    rows = frame.with_row_index(HASH + "row").filter(valid)
    hashes = pl.Series(HASH, key_hashes(rows.select(keys)) if keys else np.zeros(len(rows), dtype=np.uint64))
    by = [HASH] if time is None else [HASH, time]
    rows = rows.with_columns(hashes).sort(by, maintain_order=True)
    if unique:
        found = rows[HASH].to_numpy()
        same = np.concatenate([[False], found[1:] == found[:-1]])
        _refuse_twice(rows.filter(pl.Series(same | np.append(same[1:], False))).select(keys))
    order = pa.array(rows[HASH + "row"].to_numpy().astype(np.int64))
    made = {name: array.take(order) for name, array in arrays.items()}
    return pa.table(made | {HASH: pa.array(rows[HASH].to_numpy())})


def _refuse_twice(keys: pl.DataFrame) -> None:
    twice = keys.filter(keys.is_duplicated())
    if len(twice):
        shown = [row if len(row) > 1 else row[0] for row in twice.unique(maintain_order=True).head(_SHOWN).iter_rows()]
        raise PipelineError(
            f"join: {len(twice)} rows of the other table share their keys, such as {', '.join(map(repr, shown))}",
            fix='make them unique first, or give validate="m:m" for a row for each pair',
        )


def candidates(stored: StoredTable, hashes: Any) -> Index:
    """int64: the rows of the table that have one of these hashes, ascending."""
    known = stored.numbers(HASH)
    asked = np.sort(hashes)  # np.unique takes ten times as long for numbers that mostly differ
    asked = asked[np.append(True, asked[1:] != asked[:-1])] if len(asked) else asked
    first = np.searchsorted(known, asked)
    there = known[np.minimum(first, len(known) - 1)] == asked if len(known) else np.zeros(len(asked), dtype=bool)
    first, last = first[there], np.searchsorted(known, asked[there], side="right")
    counts = last - first
    starts = np.repeat(first - (np.cumsum(counts) - counts), counts)
    found: Index = starts + np.arange(len(starts), dtype=np.int64)
    return found


def taken(stored: StoredTable, names: Sequence[str], rows: pa.Array) -> dict[str, pa.Array]:
    """Columns of the table at these rows; nulls where a row is null."""
    table = stored.table
    return {name: _one(table.column(name)).take(rows) for name in names}


def _one(column: Any) -> pa.Array:
    return column.chunk(0) if column.num_chunks else pa.nulls(0, column.type)
