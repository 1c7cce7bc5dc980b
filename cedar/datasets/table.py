"""Read tables in memory: Arrow tables, polars and pandas frames, NumPy arrays, Hugging Face datasets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from cedar.core.boundary import as_column, canonical_types, table_of
from cedar.core.columns import TensorType, detached, from_numbers, native
from cedar.core.errors import PipelineError, invalid_call, user_site
from cedar.datasets.base import BaseSource, Chunk, Selects, Split, numbered_rows, once
from cedar.datasets.items import ItemsSource
from cedar.datasets.split_table import SplitTable
from cedar.datasets.to_arrow import arrow_column, field_of, tensor_types, with_tensors

if TYPE_CHECKING:
    from cedar.datasets.parquet_schema import Types

_SPLIT_BYTES = 512 << 10  # rows in memory are read from anywhere, so small splits let shuffle mix rows from everywhere
_FIXES = {
    "DatasetDict": 'choose a part: from_huggingface(dataset["train"])',
    "IterableDataset": "use cedar.from_iterable(lambda: iter(dataset))",
    "IterableDatasetDict": 'use cedar.from_iterable(lambda: iter(dataset["train"]))',
    "RecordBatchReader": "read all of it: cedar.from_arrow(reader.read_all())",
}

_LEAST_ROWS, _MOST_ROWS = 8192, 65_536  # rows per split, unless rows are wide
_SPLITS = 1024  # number of splits above which splits get more rows


@dataclass(frozen=True, repr=False, eq=False)
class TableSource(BaseSource):
    """An Arrow table in memory, in splits of at most 8,192 rows or 512 KiB; of more rows if the table is large."""

    table: Any
    name: str = "from_arrow"
    indices: Any = None  # int64 indices of the rows to read, in this order; None reads all rows
    rows_per_split: int = 0  # 0 chooses it
    own_code: ClassVar[bool] = False
    selects: ClassVar[Selects] = "columns"
    second_read_cost_bytes: ClassVar[int] = 0  # a second pass over other columns has no overhead

    def __post_init__(self) -> None:
        if not self.rows_per_split:
            wanted = max(_LEAST_ROWS, min(_MOST_ROWS, self._length // _SPLITS))
            most = max(4, int(_SPLIT_BYTES / max(1.0, self.row_bytes or 0.0)))
            object.__setattr__(self, "rows_per_split", 1 << (min(wanted, most).bit_length() - 1))

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
            part = self.table.take(from_numbers(np.asarray(self.indices[split.start : split.stop], dtype=np.int64)))
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
    def row_bytes(self) -> float | None:
        return float(self.table.nbytes / max(1, self.table.num_rows))

    def digest(self) -> str:
        return f"{self._length} rows of {', '.join(f'{n}: {t}' for n, t in self.schema().items())}"

    def describe(self) -> str:
        return f"{self.name}({self._length} rows)"


def from_arrow(table: Any) -> TableSource:
    """Return the source that ``cedar.from_arrow`` uses."""
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if not isinstance(table, pa.Table):
        fix = "use cedar.from_polars or cedar.from_pandas for frames, cedar.from_items for rows"
        kind = type(table).__name__
        raise invalid_call(f"from_arrow takes a pyarrow.Table or RecordBatch, not {kind}", fix=_FIXES.get(kind, fix))
    canonical_types(table.schema, "from_arrow", site=user_site())
    return TableSource(table)


def from_polars(frame: Any) -> TableSource:
    """Return the source that ``cedar.from_polars`` uses."""
    kind = type(frame).__name__
    if not hasattr(frame, "to_arrow") or not hasattr(frame, "get_columns"):
        fix = "use cedar.from_pandas(frame), cedar.from_arrow(table) or cedar.from_items(rows)"
        fix = "collect it first: cedar.from_polars(frame.collect())" if kind == "LazyFrame" else fix
        raise invalid_call(f"from_polars takes a polars.DataFrame, not {kind}", fix=fix)
    return TableSource(table_of(frame, "from_polars", user_site()), "from_polars")


def from_pandas(frame: Any, where: str = "from_pandas") -> TableSource:
    """Return the source that ``cedar.from_pandas`` uses; ``where`` names the function in errors."""
    if not hasattr(frame, "reset_index") or not hasattr(frame, "columns"):
        fix = "use cedar.from_polars(frame), cedar.from_arrow(table) or cedar.from_items(rows)"
        raise invalid_call(f"{where} takes a pandas.DataFrame, not {type(frame).__name__}", fix=fix)
    if any(name is not None for name in frame.index.names):
        try:
            frame = frame.reset_index()
        except ValueError as error:
            fix = "rename the index, frame.rename_axis(...), or leave it out: frame.reset_index(drop=True)"
            raise invalid_call(f"{where}: an index level cannot become a column: {error}", fix=fix) from error
    if not all(isinstance(name, str) for name in frame.columns):
        raise invalid_call(f"{where}: column names must be strings", fix="frame.rename(columns=str)")
    try:
        table = pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise invalid_call(f"{where}: {error}", fix="give each column values of one type: .astype(...)") from error
    canonical_types(table.schema, where, site=user_site())
    return TableSource(table.replace_schema_metadata(None), "from_pandas")


def from_numpy(arrays: Any) -> TableSource:
    """Return the source that ``cedar.from_numpy`` uses: a dict of arrays, or a file that ``numpy.load`` opened."""
    if not isinstance(arrays, Mapping):
        fix = "give cedar.from_numpy({'x': array})"
        raise PipelineError(f"from_numpy takes a dict of arrays by column, not {type(arrays).__name__}", fix=fix)
    if (odd := next((name for name in arrays if not isinstance(name, str)), None)) is not None:
        fix = "give cedar.from_numpy({'x': array})"
        raise PipelineError(f"from_numpy: column names must be strings, not {odd!r}", fix=fix)
    columns: dict[str, Any] = {}
    for name, array in arrays.items():
        try:
            columns[name] = native(np.asarray(array))
        except (TypeError, ValueError) as error:
            fix = "for lists of different lengths, use cedar.from_arrow(pyarrow.table({'x': lists}))"
            raise PipelineError(f"from_numpy: column {name!r} cannot be an array: {error}", fix=fix) from error
    shapes = {name: array.shape for name, array in columns.items()}
    if len({shape[:1] for shape in shapes.values()}) > 1 or () in shapes.values():
        raise PipelineError(f"from_numpy: all arrays need one entry per row; got shapes {shapes}", fix="array[:n]")
    values: dict[str, Any] = {}
    for name, array in columns.items():
        try:
            values[name] = arrow_column(name, pa.array(array) if array.dtype.kind in "OUSMm" else array)
        except (pa.ArrowException, TypeError, PipelineError) as error:
            what = f"from_numpy: column {name!r} of {array.dtype}, shape {array.shape}: {error.__cause__ or error}"
            fix = "give numbers: array.astype('int64') for times, numpy.stack([array.real, array.imag], -1) for complex"
            numeric = array.dtype.kind in "Mmc"
            raise PipelineError(what, fix=fix if numeric else "convert it to lists, strings or numbers") from error
    fields = [field_of(name, values[name], column) for name, column in columns.items()]
    return TableSource(pa.Table.from_arrays(list(values.values()), schema=pa.schema(fields)), "from_numpy")


def from_huggingface(dataset: Any) -> TableSource | ItemsSource:
    """Return the source that ``cedar.from_huggingface`` uses: the rows of a ``datasets.Dataset``.

    Rows are read from the dataset's Arrow table, in the dataset's order, and columns keep their stored form: images and
    audio are structs of bytes and path. If the dataset has a transform, or a format that changes values, cedar instead
    reads each row with ``dataset[i]``.
    """
    table = _arrow(getattr(dataset, "data", None))
    if table is None:
        kind = type(dataset).__name__
        raise invalid_call(f"from_huggingface takes a datasets.Dataset, not {kind}", fix=_FIXES.get(kind))
    canonical_types(table.schema, "from_huggingface", site=user_site())
    form = getattr(dataset, "format", None) or {}
    if form and not form["output_all_columns"]:
        table = table.select([name for name in table.column_names if name in form["columns"]])
    decoded = _decoded_columns(dataset, table.schema)
    other = form.get("type") not in (None, "python", "arrow", "pandas", "polars")
    changes = form.get("format_kwargs") or (other and (decoded or "double" in str(table.schema.types)))
    if changes or not all(map(_is_file, decoded.values())):  # the keyword arguments of a format include the transform
        return ItemsSource(dataset, uses_getitems=False)
    indices = _arrow(getattr(dataset, "_indices", None))
    order = None if indices is None else np.asarray(indices.column(0).to_numpy(), dtype=np.int64)
    return TableSource(table, "from_huggingface", order)


def _arrow(data: Any) -> Any:
    """Return the ``pyarrow.Table`` that a dataset's table wraps."""
    inner = getattr(data, "table", data)
    return inner if isinstance(inner, pa.Table) else None


def _decoded_columns(dataset: Any, schema: pa.Schema) -> dict[str, pa.DataType]:
    """Return the columns whose values the dataset decodes on access."""
    if not (features := getattr(dataset, "features", None)):
        return {}
    from datasets.features.features import require_decoding

    return {field.name: field.type for field in schema if require_decoding(features[field.name])}


def _is_file(kind: pa.DataType) -> bool:
    """Return whether a type is a struct of bytes and path, or a list of them."""
    if pt.is_list(kind) or pt.is_large_list(kind):
        return _is_file(kind.value_type)
    return pt.is_struct(kind) and {field.name for field in kind} == {"bytes", "path"}


def columns_without_bytes(dataset: Any, source: Any) -> dict[str, pa.DataType]:
    """Return the columns of images, audio or other files in which some values have only a path."""
    table = source.table if isinstance(source, TableSource) else pa.table({})
    files = _decoded_columns(dataset, table.schema)
    return {name: kind for name, kind in files.items() if any(map(_lacks_bytes, table.column(name).chunks))}


def _lacks_bytes(files: pa.Array) -> bool:
    return files.field("bytes").null_count > 0 if pt.is_struct(files.type) else _lacks_bytes(files.flatten())


def with_bytes(value: Any) -> Any:
    """Return a file, or a list of files, after reading missing bytes from the file's path."""
    if isinstance(value, list):
        return [with_bytes(each) for each in value]
    if value is None or value["bytes"] is not None or value["path"] is None:
        return value
    import fsspec

    with fsspec.open(value["path"], "rb") as file:
        return value | {"bytes": file.read()}
