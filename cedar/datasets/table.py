"""Read tables in memory: Arrow tables, polars and pandas frames, NumPy arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from cedar.core.boundary import as_column, canonical_types, table_of
from cedar.core.columns import TensorType, detached
from cedar.core.errors import PipelineError, user_site
from cedar.datasets.base import BaseSource, Chunk, Selects, Split, numbered_rows
from cedar.datasets.once import once
from cedar.datasets.parquet_schema import Types
from cedar.datasets.split_table import SplitTable
from cedar.datasets.tensors import field_of, tensor_types, with_tensors
from cedar.datasets.to_arrow import arrow_column

_ROWS = 65_536  # rows per split


@dataclass(frozen=True, repr=False, eq=False)
class TableSource(BaseSource):
    """An Arrow table in memory, in splits of 65,536 rows."""

    table: Any
    name: str = "from_arrow"
    indices: Any = None  # int64 indices of the rows to read, in this order; None reads all rows
    rows_per_split: int = _ROWS
    own_code: ClassVar[bool] = False
    selects: ClassVar[Selects] = "columns"
    second_read_cost_bytes: ClassVar[int] = 0  # a second pass over other columns has no overhead

    @property
    def _length(self) -> int:
        return int(self.table.num_rows if self.indices is None else len(self.indices))

    def splits(self) -> SplitTable:
        return SplitTable.from_runs(self._length, self.rows_per_split, self.row_bytes or 0)

    row_keys = staticmethod(numbered_rows)

    def read(self, split: Split) -> Iterator[Chunk]:
        assert split.stop is not None
        rows = split.stop - split.start
        if self.indices is None:
            part = self.table.slice(split.start, rows)
        else:
            part = self.table.take(pa.array(np.asarray(self.indices[split.start : split.stop], dtype=np.int64)))
        columns = {name: as_column(part.column(name)) for name in self.table.schema.names}
        columns = with_tensors(columns, self._tensors, self.name)
        if self.indices is None:  # copy, so that writes to a batch's tensor do not change the caller's table
            columns = {name: detached(column) for name, column in columns.items()}
        yield Chunk(columns, length=rows)

    def schema(self) -> Types:
        return self._types | self._tensors

    @once
    def _types(self) -> Types:
        return canonical_types(self.table.schema, self.name)

    @once
    def _tensors(self) -> dict[str, TensorType]:
        return tensor_types(self.table.schema, self._types)

    def select(self, columns: Sequence[str]) -> TableSource:
        """Return a source over the same rows with only ``columns``."""
        return replace(self, table=self.table.select(list(columns)))

    @once
    def _row_bytes(self) -> float:
        return float(self.table.nbytes / max(1, self.table.num_rows))

    @property
    def row_bytes(self) -> float | None:
        return self._row_bytes

    def digest(self) -> str:
        return f"{self._length} rows of {', '.join(f'{n}: {t}' for n, t in self.schema().items())}"

    def describe(self) -> str:
        return f"{self.name}({self._length} rows)"

    def __repr__(self) -> str:
        return self.describe()


def from_arrow(table: Any) -> TableSource:
    """Return the source that ``cedar.from_arrow`` uses: a ``pyarrow.Table`` or ``RecordBatch``.

    Raises:
        PipelineError: ``table`` has another type, two columns of the same name, or a union column.

    Examples:
        >>> import pyarrow as pa
        >>> from_arrow(pa.table({"x": [1, 2]})).schema()
        {'x': DataType(int64)}
    """
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if not isinstance(table, pa.Table):
        raise PipelineError(
            f"from_arrow takes a pyarrow.Table or RecordBatch, not {type(table).__name__}",
            site=user_site(),
            fix="use cedar.from_polars or cedar.from_pandas for frames, cedar.from_items for rows",
        )
    canonical_types(table.schema, "from_arrow", site=user_site())
    return TableSource(table)


def from_polars(frame: Any) -> TableSource:
    """Return the source that ``cedar.from_polars`` uses: a ``polars.DataFrame``.

    Raises:
        PipelineError: ``frame`` has another type (collect a LazyFrame first), or contains Python objects or 128-bit
            integers.

    Examples:
        >>> import polars as pl
        >>> from_polars(pl.DataFrame({"x": [1, 2]})).schema()
        {'x': DataType(int64)}
    """
    kind = type(frame).__name__
    if not hasattr(frame, "to_arrow") or not hasattr(frame, "get_columns"):
        fix = "use cedar.from_pandas(frame), cedar.from_arrow(table) or cedar.from_items(rows)"
        fix = "collect it first: cedar.from_polars(frame.collect())" if kind == "LazyFrame" else fix
        raise PipelineError(f"from_polars takes a polars.DataFrame, not {kind}", site=user_site(), fix=fix)
    return TableSource(table_of(frame, "from_polars", user_site()), "from_polars")


def from_pandas(frame: Any) -> TableSource:
    """Return the source that ``cedar.from_pandas`` uses: a ``pandas.DataFrame``.

    Raises:
        PipelineError: ``frame`` has another type, or a column that Arrow does not support.
    """
    if not hasattr(frame, "reset_index") or not hasattr(frame, "columns"):
        fix = "use cedar.from_polars(frame), cedar.from_arrow(table) or cedar.from_items(rows)"
        raise PipelineError(f"from_pandas takes a pandas.DataFrame, not {type(frame).__name__}", fix=fix)
    if any(name is not None for name in frame.index.names):
        frame = frame.reset_index()
    if not all(isinstance(name, str) for name in frame.columns):
        raise PipelineError("from_pandas: column names must be strings", fix="frame.rename(columns=str)")
    try:
        table = pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise PipelineError(f"from_pandas: {error}", fix="give each column values of one type: .astype(...)") from error
    canonical_types(table.schema, "from_pandas", site=user_site())
    return TableSource(table.replace_schema_metadata(None), "from_pandas")


def from_numpy(arrays: Any) -> TableSource:
    """Return the source that ``cedar.from_numpy`` uses: a dict of arrays, or a file that ``numpy.load`` opened.

    Raises:
        PipelineError: ``arrays`` has another type, arrays differ in length, or Arrow does not support a dtype.
    """
    if not isinstance(arrays, Mapping):
        fix = "give cedar.from_numpy({'x': array})"
        raise PipelineError(f"from_numpy takes a dict of arrays by column, not {type(arrays).__name__}", fix=fix)
    columns = {name: np.asarray(array) for name, array in arrays.items()}
    shapes = {name: array.shape for name, array in columns.items()}
    if len({shape[:1] for shape in shapes.values()}) > 1 or () in shapes.values():
        raise PipelineError(f"from_numpy: all arrays need one entry per row; got shapes {shapes}", fix="array[:n]")
    values: dict[str, Any] = {}
    for name, array in columns.items():
        try:
            values[name] = arrow_column(name, pa.array(array) if array.dtype.kind in "OUSMm" else array)
        except (pa.ArrowException, TypeError) as error:
            raise PipelineError(f"from_numpy: column {name!r}: {error}", fix="convert it first") from error
    fields = [field_of(name, values[name], column) for name, column in columns.items()]
    return TableSource(pa.Table.from_arrays(list(values.values()), schema=pa.schema(fields)), "from_numpy")
