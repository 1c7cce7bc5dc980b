"""Hugging Face datasets: their Arrow table, in the order of their indices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from cedar.core.boundary import canonical_types
from cedar.core.errors import PipelineError, user_site
from cedar.datasets.table import TableSource

_SPLIT_BYTES = 64 << 20


def from_huggingface(dataset: Any) -> TableSource:
    """The source behind ``cedar.from_huggingface``: a ``datasets.Dataset``, read from its Arrow table.

    Columns come as they are stored: images and audio as structs of bytes and path, formats and transforms set on the
    dataset are not applied. A dataset that was shuffled, filtered or selected is read in that order.

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
