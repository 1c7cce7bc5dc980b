"""Names and types of Parquet columns from footers: select leaf columns, and check that files agree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cedar.core.arrow import numbers
from cedar.core.boundary import canonical_types
from cedar.core.errors import SourceError, missing_column
from cedar.datasets.listing import File, reading

Types = dict[str, pa.DataType]

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8}
_OFFSET = 8  # bytes per list or string


def is_int96(footer: Any, leaf: int) -> bool:
    """Return whether a leaf has INT96 timestamps: a day of any year, and the nanoseconds of that day."""
    return bool(footer.schema.column(leaf).physical_type == "INT96")


def arrow_schema(footer: Any) -> pa.Schema:
    """Return a file's schema with INT96 timestamps as microseconds, as int64 nanoseconds overflow in the year 2262."""
    if not any(is_int96(footer, leaf) for leaf in range(len(footer.schema))):
        return footer.schema.to_arrow_schema()
    with pq.ParquetFile(pa.BufferReader(b""), metadata=footer, coerce_int96_timestamp_unit="us") as file:
        return file.schema_arrow


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
        fields = list(arrow_schema(footer))
        paths = [footer.schema.column(i).path for i in range(len(footer.schema))]
        chosen = range(len(paths)) if wanted is None else _choose(fields, paths, wanted, file)
        leaves = count()
        pruned = []
        for field in fields:
            kind = _prune(field.type, leaves, set(chosen))
            if kind is not None:
                pruned.append(pa.field(field.name, kind))
        types = canonical_types(pruned, file.url, SourceError)
    return types, sorted(chosen)


def decoded_bytes(group: Any, leaves: Iterable[int]) -> list[int]:
    """Estimate the size of decoded leaves of a row group in bytes; the encoded size is often far smaller.

    Args:
        group: metadata of the row group.
        leaves: indices of the leaves.
    """
    sizes = []
    for leaf in map(group.column, leaves):
        stored = max(0, int(leaf.total_uncompressed_size))
        values = max(0, int(leaf.num_values))
        width = _WIDTHS.get(leaf.physical_type)
        sizes.append(stored + _OFFSET * values if width is None else max(stored, width * values))
    return sizes


def _choose(fields: list[Any], paths: list[str], wanted: Sequence[str], file: File) -> list[int]:
    """Return the leaf indices of the wanted columns, each a column name or a dotted path into a struct column."""
    spans = {}
    start = 0
    for field in fields:
        stop = start + _leaf_count(field.type)
        spans[field.name] = range(start, stop)
        start = stop
    chosen: list[int] = []
    for name in wanted:
        matches = spans.get(name) or [i for i, p in enumerate(paths) if p == name or p.startswith(name + ".")]
        if not matches:
            raise missing_column(name, list(spans), f"read_parquet({file.url})")
        chosen.extend(matches)
    return chosen


def _leaf_count(kind: pa.DataType) -> int:
    if _is_flat(kind):
        return 1
    return sum(map(_leaf_count, _children(kind))) or 1


def _children(kind: pa.DataType) -> list[pa.DataType]:
    if isinstance(kind, pa.BaseExtensionType):
        return _children(kind.storage_type)
    if pa.types.is_struct(kind):
        return [f.type for f in kind]
    if pa.types.is_map(kind):
        return [kind.key_type, kind.item_type]
    return [kind.value_type] if _is_list(kind) else []


def _is_flat(kind: pa.DataType) -> bool:
    """Return whether a type has no children; False for all structs and extension types, which callers check."""
    return not kind.num_fields and not isinstance(kind, pa.BaseExtensionType | pa.StructType)


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
    )


def _prune(kind: pa.DataType, leaves: Iterator[int], chosen: set[int]) -> pa.DataType | None:
    """Return ``kind`` with only the chosen leaves, None if it has none; ``leaves`` counts the leaves visited."""
    if _is_flat(kind):
        return kind if next(leaves) in chosen else None
    if isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, pa.Bool8Type):  # Bool8 is a boolean
        return _prune(kind.storage_type, leaves, chosen)
    if pa.types.is_struct(kind):
        kept = [(f.name, _prune(f.type, leaves, chosen)) for f in kind]
        present = [(name, inner) for name, inner in kept if inner is not None]
        return pa.struct(present) if present else None
    if pa.types.is_map(kind):
        key, item = _prune(kind.key_type, leaves, chosen), _prune(kind.item_type, leaves, chosen)
        return pa.map_(key, item) if key is not None and item is not None else None
    if _is_list(kind):
        inner = _prune(kind.value_type, leaves, chosen)
        if inner is None:
            return None
        return pa.list_(inner, kind.list_size) if pa.types.is_fixed_size_list(kind) else pa.large_list(inner)
    return kind if next(leaves) in chosen else None


def check_same(first: Types, other: Types, file: File, other_file: File) -> None:
    """Raise SourceError if two files do not have the same columns."""
    for name, kind in first.items():
        if name not in other:
            raise _differ(file, other_file, f"column {name!r} ({kind}) is missing in the second")
        if other[name] != kind:
            raise _differ(file, other_file, f"column {name!r} is {kind} in the first and {other[name]} in the second")
    for name, kind in other.items():
        if name not in first:
            raise _differ(file, other_file, f"column {name!r} ({kind}) is missing in the first")


def _differ(file: File, other: File, how: str) -> SourceError:
    return SourceError(
        f"{file.url} and {other.url} have different schemas: {how}",
        fix="set the type of the column in schema={...}: files that lack it give nulls; or select the columns that all "
        "share: columns=[...]",
    )
