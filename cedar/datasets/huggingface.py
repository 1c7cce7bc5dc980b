"""Hugging Face datasets: their Arrow table, in the order of their indices."""

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
    """The source after ``cedar.from_huggingface``: a ``datasets.Dataset``, read from its Arrow table.

    Columns come as they are stored: images and audio as structs of bytes and path. A dataset that was shuffled,
    filtered or selected is read in that order. With a transform, or a format that gives other values, rows are
    what the dataset gives for each index.

    Raises:
        PipelineError: it is something else.

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
    if changes or not all(map(_is_file, decoded.values())):  # a transform is a keyword argument of its format
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
    """The ``pyarrow.Table`` that a dataset's table wraps."""
    inner = getattr(data, "table", data)
    return inner if isinstance(inner, pa.Table) else None


def _decoded_columns(dataset: Any, schema: pa.Schema) -> dict[str, pa.DataType]:
    """The columns whose values the dataset decodes on access."""
    if not (features := getattr(dataset, "features", None)):
        return {}
    from datasets.features.features import require_decoding

    return {field.name: field.type for field in schema if require_decoding(features[field.name])}


def _is_file(kind: pa.DataType) -> bool:
    """Structs of bytes and path, or lists of them."""
    if pt.is_list(kind) or pt.is_large_list(kind):
        return _is_file(kind.value_type)
    return pt.is_struct(kind) and {field.name for field in kind} == {"bytes", "path"}


def columns_without_bytes(dataset: Any, source: Any) -> dict[str, pa.DataType]:
    """The columns of images, audio or other files, some of which have only a path."""
    table = source.table if isinstance(source, TableSource) else pa.table({})
    files = _decoded_columns(dataset, table.schema)
    return {name: kind for name, kind in files.items() if any(map(_lacks_bytes, table.column(name).chunks))}


def _lacks_bytes(files: pa.Array) -> bool:
    return files.field("bytes").null_count > 0 if pt.is_struct(files.type) else _lacks_bytes(files.flatten())


def with_bytes(value: Any) -> Any:
    """A file, or a list of files, with its bytes read from its path if they are missing."""
    if isinstance(value, list):
        return [with_bytes(each) for each in value]
    if value is None or value["bytes"] is not None or value["path"] is None:
        return value
    with fsspec.open(value["path"], "rb") as file:
        return value | {"bytes": file.read()}
