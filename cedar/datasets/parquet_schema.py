"""What Parquet footers say of columns: names, types and bounds; select leaf columns, and check that files agree."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from cedar.core.boundary import canonical_type, canonical_types
from cedar.core.columns import from_numbers, from_strings, numbers
from cedar.core.errors import SourceError, missing_column
from cedar.datasets.files_io import File, reading
from cedar.datasets.hive import HiveColumn
from cedar.datasets.truth import Bounds, Path

# ---- bounds from footers ---------------------------------------------------------------------------------------------


# Writers may truncate a long maximum without rounding it up. All strings that start with the stored maximum therefore
# count as within the bounds.
_MAX_SUFFIX = "\U0010ffff" * 8

_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}

Leaves = dict[Path, tuple[int, pa.DataType]]

Types = dict[str, pa.DataType]

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8}
_OFFSET = 8  # bytes per list or string


def is_int96(footer: Any, leaf: int) -> bool:
    """Return whether a leaf has INT96 timestamps: a day of any year, and the nanoseconds of that day."""
    return bool(footer.schema.column(leaf).physical_type == "INT96")


def check_microseconds(name: str, column: Any, fine: Any, file: File) -> None:
    """Compare a column with the same values read as nanoseconds; the low digits are correct despite overflow.

    Raises:
        SourceError: an INT96 timestamp is not a multiple of a microsecond.
    """
    if column.type == fine.type:
        return
    if pa.types.is_struct(fine.type):
        for i in range(fine.type.num_fields):
            check_microseconds(name, column.field(i), fine.field(i), file)
    elif pa.types.is_large_list(fine.type) or pa.types.is_fixed_size_list(fine.type):
        check_microseconds(name, column.values, fine.values, file)
    elif (numbers(fine.fill_null(0).view("int64")) != numbers(column.fill_null(0).view("int64")) * 1000).any():
        raise SourceError(
            f"{file.url}: column {name!r} has INT96 timestamps with nanoseconds, which {column.type} cannot hold",
            fix="rewrite it: pyarrow.parquet.write_table(pyarrow.parquet.read_table(path), other) keeps nanoseconds",
        )


def types_of(footer: Any, file: File, wanted: Sequence[str] | None) -> tuple[Types, list[int]]:
    """Return the canonical types of the selected columns in file order, and the indices of their leaves.

    Raises:
        PipelineError: a selected column does not exist.
        SourceError: the footer cannot be interpreted, or a column name appears twice.
    """
    with reading(file.url, "footer"):
        chosen = list(range(len(footer.schema))) if wanted is None else sorted(_choose(footer.schema, wanted, file))
        # INT96 timestamps as microseconds, since int64 nanoseconds overflow in the year 2262
        with pq.ParquetFile(pa.BufferReader(b""), metadata=footer, coerce_int96_timestamp_unit="us") as stored:
            selected = stored.reader.read_row_groups([], column_indices=chosen).schema
        types = canonical_types(selected, file.url, SourceError)
    return types, chosen


def decoded_bytes(group: Any, leaves: Iterable[int]) -> list[int]:
    """Estimate the size of decoded leaves of a row group in bytes; the encoded size is often far smaller."""
    sizes = []
    for leaf in map(group.column, leaves):
        stored = max(0, int(leaf.total_uncompressed_size))
        values = max(0, int(leaf.num_values))
        width = _WIDTHS.get(leaf.physical_type)
        sizes.append(stored + _OFFSET * values if width is None else max(stored, width * values))
    return sizes


def _choose(schema: Any, wanted: Sequence[str], file: File) -> list[int]:
    """Return the leaf indices of the wanted columns, each a column name or a dotted path into a struct column."""
    paths = [schema.column(i).path for i in range(len(schema))]
    spans = {}
    start = 0
    for field in schema.to_arrow_schema():
        stop = start + _leaf_count(field.type)
        spans[field.name] = range(start, stop)
        start = stop
    chosen: list[int] = []
    for name in wanted:
        matches = spans.get(name) or [
            leaf
            for column, leaves in spans.items()
            for leaf in (leaves if name.startswith(f"{column}.") else ())
            if paths[leaf] == name or paths[leaf].startswith(f"{name}.")
        ]
        if not matches:
            raise missing_column(name, list(spans), f"read_parquet({file.url})")
        chosen.extend(matches)
    return chosen


def column_of(path: str, names: Collection[str]) -> str:
    """Return the column that is selected by its name or by a dotted path into it; the name may have dots, too.

    Examples:
        >>> column_of("a.b.c", ["a", "a.b"])
        'a.b'
    """
    return path if path in names else max((name for name in names if path.startswith(f"{name}.")), key=len)


def _leaf_count(kind: pa.DataType) -> int:
    while isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    return sum(_leaf_count(kind.field(i).type) for i in range(kind.num_fields)) or 1


def check_same(first: Types, other: Types, file: File, other_file: File, *, schema: bool = False) -> None:
    """Raise SourceError if two files do not have the same columns. ``schema``: the reader has this argument."""
    how = next((f"column {n!r} ({first[n]}) is missing in the second" for n in first if n not in other), "")
    how = how or next((f"column {n!r} ({other[n]}) is missing in the first" for n in other if n not in first), "")
    changed = [n for n in first if first[n] != other.get(n)]
    if not how and not changed:
        return
    name = changed[0] if changed else ""
    how = how or f"column {name!r} is {first[name]} in the first and {other[name]} in the second"
    fix = "read them separately, give both the same columns (select, with_columns and cast), and use cedar.concat"
    if schema:
        fix = "set the type of the column in schema={...}: files that lack it give nulls; or select the columns that "
        fix += "all share: columns=[...]"
    raise SourceError(f"{file.url} and {other_file.url} have different schemas: {how}", fix=fix)


def leaves_of(footer: Any) -> Leaves:
    """Return the index and canonical type of each leaf that has one value per row, by the leaf's path."""
    numbers = count()
    return {
        path: (leaf, kind) for field in footer.schema.to_arrow_schema() for path, leaf, kind in _walk(field, numbers)
    }


def _walk(field: Any, numbers: Iterator[int]) -> Iterator[tuple[Path, int, pa.DataType]]:
    kind = field.type
    if isinstance(kind, pa.Bool8Type):  # the statistics of Bool8 columns are integers
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
                pass  # skip leaves inside lists, which have several values per row
    else:
        yield (field.name,), next(numbers), canonical_type(kind)


def leaf_bounds(leaf: Any, kind: pa.DataType, rows: int) -> Bounds:
    """Return the bounds of a leaf in a row group; nulls and ends are None if statistics are missing or unreadable.

    Args:
        leaf: the leaf's column chunk metadata.
        kind: the canonical type of its values.
        rows: the row group's number of rows.
    """
    try:
        stats = leaf.statistics
        if stats is None:
            return Bounds(rows)
        nulls = int(stats.null_count) if stats.has_null_count else None
        if nulls != rows and leaf.physical_type == "BYTE_ARRAY" and "." in leaf.path_in_schema:
            nulls = None  # Arrow's null counts of dictionary strings in a struct omit rows with a null struct
        ends = _ends(stats, kind) if stats.has_min_max else None
    except (pa.ArrowException, ValueError, TypeError, OverflowError, NotImplementedError):
        return Bounds(rows)
    return Bounds(rows, nulls, ends)


def hive_bounds(column: HiveColumn, file: int, rows: int) -> Bounds:
    """Return the bounds of a partition column in a file, where it has a single value."""
    value = column.values[file]
    if value is None:
        return Bounds(rows, rows)
    return Bounds(rows, 0, pa.array([value, value], column.kind))


def _bounds_array(low: Any, high: Any, kind: pa.DataType) -> pa.Array:
    return from_numbers(np.array([low, high], np.dtype(kind.to_pandas_dtype())), kind)


def _ends(stats: Any, kind: pa.DataType) -> pa.Array | None:
    if pt.is_integer(kind):
        return _bounds_array(stats.min, stats.max, kind)
    if pt.is_boolean(kind) or pt.is_decimal(kind):
        return pa.array([stats.min, stats.max], kind)
    if pt.is_float32(kind) or pt.is_float64(kind):
        known = not math.isnan(stats.min) and not math.isnan(stats.max)
        return _bounds_array(stats.min, stats.max, kind) if known else None
    if pt.is_large_string(kind) or pt.is_large_binary(kind):
        return _string_ends(stats, kind)
    if pt.is_date32(kind) and stats.logical_type.type == "DATE":
        return _bounds_array(stats.min_raw, stats.max_raw, pa.int32()).cast(kind)
    if pt.is_timestamp(kind) and stats.logical_type.type == "TIMESTAMP":
        unit = _UNITS[json.loads(stats.logical_type.to_json())["timeUnit"]]
        return _bounds_array(stats.min_raw, stats.max_raw, pa.int64()).cast(pa.timestamp(unit, kind.tz)).cast(kind)
    return None


def _string_ends(stats: Any, kind: pa.DataType) -> pa.Array:
    low, high = (v.encode() if isinstance(v, str) else v for v in (stats.min, stats.max))
    if pt.is_large_binary(kind):
        return from_strings([low, high + b"\xff" * len(_MAX_SUFFIX)], kind)
    return from_strings([low.decode(), high.decode() + _MAX_SUFFIX], kind)
