"""Convert blocks to Arrow tables, and store arrays in files, with the shape and dtype of a row in field metadata.

Arrow files store arrays as nested fixed-size lists. Parquet files store each row's bytes, since nested lists take
thirty times as long to read. Vectors have no such metadata, so that expressions can read them as fixed-size lists.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from cedar.core.block import Block
from cedar.core.columns import Column, ColumnType, TensorType, blank, type_of
from cedar.core.convert import to_arrow, to_numpy
from cedar.core.cursor import no_keys
from cedar.core.errors import PipelineError, RowError, SourceError

_MARK = b"cedar.array"  # key in a field's metadata


def arrow_column(name: str, column: Column) -> pa.Array:
    """Return a column as an Arrow array, as ``to_arrow`` does, but reject Python objects."""
    if isinstance(column, np.ndarray) and column.dtype == object:
        raise PipelineError(
            f"column {name!r} holds Python objects, which Arrow cannot hold",
            fix=f"map it to numbers, strings or arrays first, or drop it with p.drop({name!r})",
        )
    return to_arrow(column, name)


def arrow_batch(block: Block) -> Any:
    """Return the rows of a block as a record batch."""
    arrays = {name: arrow_column(name, column) for name, column in block.columns.items()}
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise PipelineError(f"columns of different lengths cannot form a table: {lengths}")
    fields = [field_of(name, array, block.columns[name]) for name, array in arrays.items()]
    return pa.RecordBatch.from_arrays(list(arrays.values()), schema=pa.schema(fields))


def same_schema(first: Any, other: Any) -> None:
    """Raise PipelineError if a block has other columns or types than the first block."""
    if first.equals(other):
        return
    for name in dict.fromkeys([*first.names, *other.names]):
        before, now = (s.field(name).type if name in s.names else "missing" for s in (first, other))
        if before != now:
            raise PipelineError(
                f"column {name!r} is {before} in the first rows and {now} in later ones",
                fix="set its type where it is created, with dtype=...",
            )


def to_arrow_table(blocks: Iterable[Block], schema: dict[str, ColumnType] | None = None) -> Any:
    """Return all blocks as one ``pyarrow.Table``.

    Args:
        blocks: blocks with the same columns.
        schema: the result's columns and types if there are no blocks.

    Raises:
        PipelineError: a column contains Python objects, or its type differs between blocks.
    """
    batches = [arrow_batch(block) for block in blocks]
    for batch in batches[1:]:
        same_schema(batches[0].schema, batch.schema)
    if not batches:
        known = (pa.DataType, TensorType)
        kinds = {n: k if isinstance(k, known) else pa.null() for n, k in (schema or {}).items()}
        return pa.Table.from_batches([arrow_batch(Block({n: blank(k, 0) for n, k in kinds.items()}, no_keys()))])
    return pa.Table.from_batches([b for b in batches if b.num_rows] or batches[:1])


def field_of(name: str, array: pa.Array, column: Column) -> pa.Field:
    """Return the Arrow field for a column that is written as ``array``."""
    kind = type_of(column)
    if not isinstance(kind, TensorType) or len(kind.shape) < 2 or 0 in kind.shape:
        return pa.field(name, array.type)
    return pa.field(name, array.type, metadata={_MARK: json.dumps({"shape": kind.shape, "dtype": kind.dtype})})


def with_bytes(table: pa.Table) -> pa.Table:
    """Return a table in which arrays are stored as bytes instead of nested lists."""
    fields, columns = list(table.schema), list(table.columns)
    for place, field in enumerate(fields):
        kind = declared_tensors([field]).get(field.name)
        if kind is None or not pt.is_fixed_size_list(field.type):
            continue
        stored = pa.binary(_width(kind))
        fields[place] = field.with_type(stored)
        columns[place] = pa.chunked_array([_bytes_of(chunk, stored) for chunk in columns[place].chunks], stored)
    return pa.table(columns, schema=pa.schema(fields))


def _bytes_of(lists: pa.Array, stored: pa.DataType) -> pa.Array:
    values = np.ascontiguousarray(to_numpy(lists, ""))
    return pa.Array.from_buffers(stored, len(lists), [None, pa.py_buffer(values.reshape(-1).view(np.uint8))])


def tensor_types(fields: Iterable[pa.Field], types: Mapping[str, pa.DataType]) -> dict[str, TensorType]:
    """Return the tensor types of the columns that field metadata declares to be arrays.

    Args:
        fields: the fields of a file.
        types: the canonical types of the columns to read; other columns are ignored.
    """
    declared = declared_tensors(fields)
    return {name: kind for name, kind in declared.items() if name in types and _can_store(types[name], kind)}


def declared_tensors(fields: Iterable[pa.Field]) -> dict[str, TensorType]:
    """Return the tensor types that field metadata declares, by column; invalid metadata is ignored."""
    declared = {}
    for field in fields:
        try:
            reported: dict[str, Any] = json.loads((field.metadata or {})[_MARK])
            shape, dtype = tuple(reported["shape"]), np.dtype(reported["dtype"])
        except (KeyError, TypeError, ValueError):
            continue
        if all(isinstance(size, int) and size > 0 for size in shape) and dtype.kind in "biufmM":
            declared[field.name] = TensorType(shape, str(dtype))
    return declared


def _width(kind: TensorType) -> int:
    """Return the number of bytes of a row."""
    return math.prod(kind.shape) * np.dtype(kind.dtype).itemsize


def _can_store(stored: pa.DataType, kind: TensorType) -> bool:
    """Return whether a column of Arrow type ``stored`` can contain arrays of ``kind``."""
    if pt.is_fixed_size_binary(stored):
        return bool(stored.byte_width == _width(kind))
    shape = []
    while pt.is_fixed_size_list(stored):
        shape.append(stored.list_size)
        stored = stored.value_type
    return tuple(shape) == kind.shape and str(to_numpy(pa.nulls(0, stored), "").dtype) == kind.dtype


def same_tensors(files: Iterable[Mapping[str, TensorType]]) -> dict[str, TensorType]:
    """Return the columns that have the same tensor type in all files, and these types."""
    first, *others = files
    return {name: kind for name, kind in first.items() if all(other.get(name) == kind for other in others)}


def with_tensors(columns: Mapping[str, Column], tensors: Mapping[str, TensorType], where: str) -> dict[str, Column]:
    """Convert the columns in ``tensors`` to arrays."""
    result = dict(columns)
    try:
        for name in tensors.keys() & columns.keys():
            result[name] = _arrays(columns[name], name, tensors[name])
    except RowError as error:
        raise SourceError(
            f"{where}: {error.args[0]}, though its field says that it holds arrays",
            fix="write the column again, with an array in each row, or select the other columns",
        ) from error
    return result


def _arrays(column: Column, name: str, kind: TensorType) -> Column:
    if not pt.is_fixed_size_binary(column.type):
        return to_numpy(column, name)
    if column.null_count:
        raise RowError(f"column {name!r} has {column.null_count:,} null(s)")
    dtype, each = np.dtype(kind.dtype), math.prod(kind.shape)
    start = column.offset * _width(kind)
    values = np.frombuffer(
        column.buffers()[1] or b"", dtype if dtype.kind != "b" else np.uint8, len(column) * each, start
    )
    return (values if dtype.kind != "b" else values != 0).reshape(len(column), *kind.shape)
