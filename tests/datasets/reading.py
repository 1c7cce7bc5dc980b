"""What the tests of sources share: read all of it, or one part at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cloudpickle
import pyarrow as pa

from cedar.core.columns import type_of
from cedar.datasets.base import Split, offsets_of

Keyed = tuple[tuple[int, int], dict[str, Any]]


def read_split(source: Any, split: Split) -> list[Keyed]:
    """((file, row), row as a dict) of a split, chunk after chunk; checks what every chunk must hold."""
    rows: list[Keyed] = []
    row = split.start
    for chunk in source.read(split):
        schema = source.schema()
        if schema is not None:
            assert list(chunk.columns) == list(schema)
            for name, column in chunk.columns.items():
                assert not isinstance(schema[name], pa.DataType) or type_of(column) == schema[name], name
        offsets = offsets_of(chunk, row)
        assert len(offsets) == chunk.rows
        row += chunk.rows
        columns = {n: c.to_pylist() if isinstance(c, pa.Array) else list(c) for n, c in chunk.columns.items()}
        assert all(len(c) == chunk.rows for c in columns.values())
        for i in range(chunk.rows):
            file = split.file if chunk.files is None else int(chunk.files[i])
            rows.append(((file, int(offsets[i])), {n: c[i] for n, c in columns.items()}))
    if split.rows is not None:
        assert len(rows) == split.rows
    return rows


def read_keyed(source: Any, order: Sequence[int] | None = None) -> list[Keyed]:
    """All rows; splits are read in ``order``, and come out in theirs."""
    splits = source.splits()
    read = {i: read_split(source, splits[i]) for i in (order if order is not None else range(len(splits)))}
    rows = [row for i in range(len(splits)) for row in read[i]]
    keys = [key for key, _ in rows]
    assert len(set(keys)) == len(keys), "row keys must differ"
    return rows


def read_rows(source: Any) -> list[dict[str, Any]]:
    return [row for _, row in read_keyed(source)]


def column(source: Any, name: str) -> list[Any]:
    return [row[name] for row in read_rows(source)]


def traveled(source: Any) -> Any:
    """The source as another process gets it."""
    return cloudpickle.loads(cloudpickle.dumps(source))
