"""Read Hugging Face datasets from their Arrow tables, in the dataset's row order."""

from __future__ import annotations

from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from cedar.core.boundary import canonical_types
from cedar.core.errors import PipelineError, user_site
from cedar.datasets.items import ItemsSource
from cedar.datasets.table import TableSource

_SPLIT_BYTES = 64 << 20


def from_huggingface(dataset: Any) -> TableSource | ItemsSource:
    """Return the source that ``cedar.from_huggingface`` uses: the rows of a ``datasets.Dataset``.

    Rows are read from the dataset's Arrow table, in the dataset's order, and columns keep their stored form: images and
    audio are structs of bytes and path. If the dataset has a transform, or a format that changes values, cedar instead
    reads each row with ``dataset[i]``.

    Raises:
        PipelineError: ``dataset`` is not a ``datasets.Dataset``.

    Examples:
        >>> import pyarrow as pa
        >>> class Dataset:  # what datasets.Dataset has
        ...     data = pa.table({"x": [1, 2]})
        ...     _indices = None
        >>> from_huggingface(Dataset()).schema()
        {'x': DataType(int64)}
    """
    table = _arrow(getattr(dataset, "data", None))
    if table is None:
        kind = type(dataset).__name__
        raise PipelineError(
            f"from_huggingface takes a datasets.Dataset, not {kind}", site=user_site(), fix=_FIXES.get(kind)
        )
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
    width = max(1.0, table.nbytes / max(1, table.num_rows))
    rows = int(min(65_536, max(16, 1 << max(0, int(_SPLIT_BYTES / width).bit_length() - 1))))
    return TableSource(table, "from_huggingface", order, rows)


_FIXES = {
    "DatasetDict": 'choose a part: from_huggingface(dataset["train"])',
    "IterableDataset": "use cedar.from_iterable(lambda: iter(dataset))",
    "IterableDatasetDict": 'use cedar.from_iterable(lambda: iter(dataset["train"]))',
}


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
    with fsspec.open(value["path"], "rb") as file:
        return value | {"bytes": file.read()}
