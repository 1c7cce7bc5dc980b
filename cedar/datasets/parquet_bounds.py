"""Bounds of Parquet columns from the statistics in footers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from cedar.core.arrow import of_numbers, of_texts
from cedar.core.boundary import canonical_type
from cedar.datasets.hive import HiveColumn
from cedar.datasets.truth import Bounds, Path

# Statistics may cut a long string. What begins with the greatest one counts as below the bound, whether or not its
# writer saw to that.
_BEYOND = "\U0010ffff" * 8
_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}

Leaves = dict[Path, tuple[int, pa.DataType]]


def leaves_of(footer: Any) -> Leaves:
    """The number and the canonical type of each leaf that has one value per row, by its path."""
    numbers = count()
    return {
        path: (leaf, kind) for field in footer.schema.to_arrow_schema() for path, leaf, kind in _walk(field, numbers)
    }


def _walk(field: Any, numbers: Iterator[int]) -> Iterator[tuple[Path, int, pa.DataType]]:
    kind = field.type
    if isinstance(kind, pa.Bool8Type):  # its statistics are of integers
        next(numbers)
        return
    while isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pt.is_struct(kind):
        for child in kind:
            for path, leaf, type_ in _walk(child, numbers):
                yield (field.name, *path), leaf, type_
    elif pt.is_nested(kind):
        for child in (kind.field(i) for i in range(kind.num_fields)):
            for _ in _walk(child, numbers):
                pass  # many values per row
    else:
        yield (field.name,), next(numbers), canonical_type(kind)


def leaf_bounds(leaf: Any, kind: pa.DataType, rows: int) -> Bounds:
    """What the statistics of a leaf in a row group say; nothing where they are absent or not understood.

    Args:
        leaf: its metadata in the row group.
        kind: the canonical type of its values.
        rows: of the row group.
    """
    try:
        stats = leaf.statistics
        if stats is None:
            return Bounds(rows)
        nulls = int(stats.null_count) if stats.has_null_count else None
        ends = _ends(stats, kind) if stats.has_min_max else None
    except (pa.ArrowException, ValueError, TypeError, OverflowError, NotImplementedError):
        return Bounds(rows)
    return Bounds(rows, nulls, ends)


def hive_bounds(column: HiveColumn, file: int, rows: int) -> Bounds:
    """A partition column has one value per file."""
    value = column.values[file]
    if value is None:
        return Bounds(rows, rows)
    return Bounds(rows, 0, pa.array([value, value], column.kind))


def _two(low: Any, high: Any, kind: pa.DataType) -> pa.Array:
    return of_numbers(np.array([low, high], np.dtype(kind.to_pandas_dtype())), kind)


def _ends(stats: Any, kind: pa.DataType) -> pa.Array | None:
    if pt.is_integer(kind):
        return _two(stats.min, stats.max, kind)
    if pt.is_boolean(kind) or pt.is_decimal(kind):
        return pa.array([stats.min, stats.max], kind)
    if pt.is_float32(kind) or pt.is_float64(kind):
        known = not math.isnan(stats.min) and not math.isnan(stats.max)
        return _two(stats.min, stats.max, kind) if known else None
    if pt.is_large_string(kind) or pt.is_large_binary(kind):
        return _text_ends(stats, kind)
    if pt.is_date32(kind) and stats.logical_type.type == "DATE":
        return _two(stats.min_raw, stats.max_raw, pa.int32()).cast(kind)
    if pt.is_timestamp(kind) and stats.logical_type.type == "TIMESTAMP":
        unit = _UNITS[json.loads(stats.logical_type.to_json())["timeUnit"]]
        return _two(stats.min_raw, stats.max_raw, pa.int64()).cast(pa.timestamp(unit, kind.tz)).cast(kind)
    return None


def _text_ends(stats: Any, kind: pa.DataType) -> pa.Array:
    low, high = (v.encode() if isinstance(v, str) else v for v in (stats.min, stats.max))
    if pt.is_large_binary(kind):
        return of_texts([low, high + b"\xff" * len(_BEYOND)], kind)
    return of_texts([low.decode(), high.decode() + _BEYOND], kind)
