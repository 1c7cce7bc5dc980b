"""Hugging Face datasets: their Arrow table, in the order of their indices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from cedar.core.boundary import canonical_types
from cedar.core.errors import PipelineError, user_site
from cedar.datasets.items import ItemsSource, from_items
from cedar.datasets.listing import reading
from cedar.datasets.table import TableSource

_SPLIT_BYTES = 64 << 20


@dataclass(frozen=True, repr=False, eq=False)
class HuggingFaceTable(TableSource):
    """The table of a dataset; ``files`` are its columns of images, audio and other files."""

    files: frozenset[str] = frozenset()

    def part(self, start: int, stop: int) -> Any:
        """Some rows, with the contents of files of which the table has the paths alone."""
        part = super().part(start, stop)
        for place, field in enumerate(part.schema):
            column = part.column(place)
            if field.name in self.files and any(map(_lacks_bytes, column.chunks)):
                part = part.set_column(place, field, pa.array(_with_bytes(column.to_pylist()), field.type))
        return part


@dataclass(frozen=True, eq=False)
class HuggingFaceRows:
    """What a dataset gives for each index: for many at once, formats and transforms may give something else."""

    dataset: Any

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


def from_huggingface(dataset: Any) -> TableSource | ItemsSource:
    """The source behind ``cedar.from_huggingface``: a ``datasets.Dataset``, read from its Arrow table.

    Images and audio are structs of bytes and path; files of which only the path is stored are read. A dataset that was
    shuffled, filtered or selected is read in that order. Where a transform or a format is set that gives other values
    or columns than are stored, rows are what the dataset gives for each index.

    Raises:
        PipelineError: it is something else.

    Example:
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
    features = getattr(dataset, "features", None) or {}
    decoded = {name for name in table.column_names if _decodes(features.get(name))}
    files = frozenset(name for name in decoded if _is_file(table.schema.field(name).type))
    other = form.get("type") not in (None, "python", "arrow", "pandas", "polars")
    if decoded > files or form.get("format_kwargs") or (other and (decoded or "double" in str(table.schema.types))):
        return from_items(HuggingFaceRows(dataset))  # transforms are keyword arguments of a format
    indices = _arrow(getattr(dataset, "_indices", None))
    order = None if indices is None else np.asarray(indices.column(0).to_numpy(), dtype=np.int64)
    width = max(1.0, table.nbytes / max(1, table.num_rows))
    rows = int(min(65_536, max(16, 1 << max(0, int(_SPLIT_BYTES / width).bit_length() - 1))))
    return HuggingFaceTable(table, "from_huggingface", order, rows, files)


_FIXES = {
    "DatasetDict": 'choose a part: from_huggingface(dataset["train"])',
    "IterableDataset": "use cedar.from_iterable(lambda: iter(dataset))",
    "IterableDatasetDict": 'use cedar.from_iterable(lambda: iter(dataset["train"]))',
}


def _arrow(data: Any) -> Any:
    """The ``pyarrow.Table`` that a dataset's table wraps."""
    inner = getattr(data, "table", data)
    return inner if isinstance(inner, pa.Table) else None


def _decodes(feature: Any) -> bool:
    """Whether a dataset gives something else for a value, at any depth, than it stores."""
    inner = getattr(feature, "feature", feature)
    if inner is not feature or isinstance(inner, (dict, list)):
        return any(
            map(_decodes, inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list) else [inner])
        )
    return hasattr(feature, "decode_example") and bool(getattr(feature, "decode", True))


def _is_file(kind: pa.DataType) -> bool:
    """Structs of bytes and path, or lists of them."""
    if pt.is_list(kind) or pt.is_large_list(kind):
        return _is_file(kind.value_type)
    return pt.is_struct(kind) and {field.name for field in kind} == {"bytes", "path"}


def _lacks_bytes(files: pa.Array) -> bool:
    return files.field("bytes").null_count > 0 if pt.is_struct(files.type) else _lacks_bytes(files.flatten())


def _with_bytes(value: Any) -> Any:
    """Files, or lists of them, each with its bytes."""
    if isinstance(value, list):
        return [_with_bytes(each) for each in value]
    if value is None or value["bytes"] is not None or value["path"] is None:
        return value
    with reading(value["path"]), fsspec.open(value["path"], "rb") as file:
        return value | {"bytes": file.read()}
