"""Helpers for clustering, sessions and histories: runs of equal values, and selection of table rows by index."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from cedar.core.distinct import distinct
from cedar.core.errors import PipelineError, missing_column
from cedar.core.groups import take_lists

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_SECONDS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def column_of(table: Any, name: str, caller: str) -> pa.Array:
    """Return one column as a single array.

    Raises:
        PipelineError: the column does not exist.
    """
    if name not in table.column_names:
        raise missing_column(name, table.column_names, caller)
    column = table.column(name)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def take_rows(table: Any, index: Ints) -> Any:
    """Return the table rows with these indices; for lists of numbers, several times faster than Arrow's ``take``."""
    columns = [take_lists(_as_one_array(column), index) for column in table.columns]
    return pa.table(dict(zip(table.column_names, columns, strict=True)))


def _as_one_array(column: Any) -> pa.Array:
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined


def codes_of(column: pa.Array) -> Ints:
    """Return an integer code per row, equal for equal values, numbered in order of first occurrence."""
    return distinct([column])[0].astype(np.int64)


def ordinals(column: pa.Array) -> npt.NDArray[Any]:
    """Return numbers that sort like the column's values: the values of numeric and time columns, else their ranks."""
    kind = column.type
    if pt.is_temporal(kind):
        column = column.cast(pa.int64()) if kind.bit_width == 64 else column.cast(pa.int32())
        kind = column.type
    if pt.is_integer(kind) or pt.is_floating(kind):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    return np.asarray(pc.rank(column, tiebreaker="dense").to_numpy(zero_copy_only=False))


def per_minute(column: pa.Array, unit: str, name: str) -> int:
    """Return how many units of a time column make a minute; ``unit`` is the unit of times that are plain numbers.

    Raises:
        PipelineError: the column holds neither numbers nor times.
    """
    kind = column.type
    if pt.is_timestamp(kind):
        return 60 * _SECONDS[kind.unit]
    if not (pt.is_integer(kind) or pt.is_floating(kind)):
        raise PipelineError(f"column {name!r} of {kind} does not hold times", fix="give numbers, or timestamps")
    if unit not in _SECONDS:
        raise PipelineError(f"unit={unit!r}", fix=f"one of {', '.join(_SECONDS)}")
    return 60 * _SECONDS[unit]


def starts_run(codes: npt.NDArray[Any]) -> Flags:
    """Return a mask of the rows that begin a run: the first row, and rows that differ from the previous row."""
    first = np.ones(len(codes), dtype=bool)
    first[1:] = codes[1:] != codes[:-1]
    return first


def run_start(first: Flags) -> Ints:
    """Return, for each row, the index of the row that begins its run."""
    return np.maximum.accumulate(np.where(first, np.arange(len(first)), 0))
