"""Convert blocks to Arrow tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from cedar.core.block import Block
from cedar.core.columns import Column, ColumnType, TensorType, blank
from cedar.core.cursor import no_keys
from cedar.core.errors import PipelineError
from cedar.core.groups.column import GroupColumn, plain
from cedar.datasets.tensors import field_of


def arrow_column(name: str, column: Column) -> pa.Array:
    """Return a column as an Arrow array; fixed-shape tensors become (nested) fixed-size lists.

    Raises:
        PipelineError: the column contains Python objects, or its dtype does not exist in Arrow.
    """
    if isinstance(column, pa.Array | GroupColumn):
        return plain(column)
    if column.dtype == object:
        raise PipelineError(
            f"column {name!r} holds Python objects, which Arrow cannot hold",
            fix=f"map it to numbers, strings or arrays first, or drop it with p.drop({name!r})",
        )
    try:
        flat = pa.array(np.ascontiguousarray(column).reshape(-1))
    except pa.ArrowException as error:
        raise PipelineError(f"column {name!r}: Arrow has no type for {column.dtype}", fix="convert it first") from error
    for i, size in reversed(list(enumerate(column.shape[1:], 1))):
        rows = int(np.prod(column.shape[:i]))
        if size:
            flat = pa.FixedSizeListArray.from_arrays(flat, type=pa.list_(flat.type, size))
        else:  # pyarrow cannot read fixed-size lists of size 0 from Parquet
            flat = pa.array([[]] * rows, pa.large_list(flat.type))
    return flat


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

    Examples:
        >>> import numpy as np, pyarrow as pa
        >>> from cedar.core.cursor import Keys
        >>> to_arrow_table([Block({"x": pa.array([1, 2])}, Keys(np.arange(2)))]).num_rows
        2
    """
    batches = [arrow_batch(block) for block in blocks]
    for batch in batches[1:]:
        same_schema(batches[0].schema, batch.schema)
    if not batches:
        known = (pa.DataType, TensorType)
        kinds = {n: k if isinstance(k, known) else pa.null() for n, k in (schema or {}).items()}
        return pa.Table.from_batches([arrow_batch(Block({n: blank(k, 0) for n, k in kinds.items()}, no_keys()))])
    return pa.Table.from_batches([b for b in batches if b.num_rows] or batches[:1])
