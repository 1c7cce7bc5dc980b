"""Functions that read versioned tables: Delta Lake and Iceberg."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from cedar.pipeline.core import Pipeline
from cedar.pipeline.sources import StorageOptions, start


def read_delta(
    uri: str | os.PathLike[str],
    *,
    version: int | None = None,
    columns: Sequence[str] | None = None,
    storage_options: StorageOptions = None,
) -> Pipeline:
    """Read the rows of one version of a Delta Lake table. Needs ``cedar-data[delta]``.

    Args:
        uri: path or URL of the table.
        version: version number; by default the latest at the time of this call. A resumed run reads the version that
            is recorded in its state.
        columns: columns to read; by default all. A column that was added later is null in rows of older files.
        storage_options: filesystem options such as keys and endpoints; see docs/storage.md.

    Raises:
        SourceError: the table or version does not exist, or it has no rows.
        PipelineError: deltalake is not installed, or the table has deletion vectors or renamed columns, which cedar
            does not support.

    Examples:
        >>> import cedar, deltalake, pyarrow as pa, tempfile
        >>> deltalake.write_deltalake(folder := tempfile.mkdtemp(), pa.table({"x": [1, 2, 3]}))
        >>> _ = deltalake.DeltaTable(folder).delete("x = 2")
        >>> [row["x"] for row in cedar.read_delta(folder)], cedar.read_delta(folder, version=0).count()
        ([1, 3], 3)
    """
    from cedar.datasets import snapshots

    return start(lambda: snapshots.read_delta(uri, version, columns, storage_options), storage_options)


def read_iceberg(
    table: Any,
    *,
    snapshot_id: int | None = None,
    columns: Sequence[str] | None = None,
    storage_options: StorageOptions = None,
) -> Pipeline:
    """Read the rows of one snapshot of an Iceberg table. Needs ``cedar-data[iceberg]``.

    Args:
        table: a pyiceberg table such as ``catalog.load_table("db.clicks")``, or a metadata file's path or URL.
        snapshot_id: snapshot; by default the current one at this call. A resumed run reads its state's snapshot.
        columns, storage_options: see ``read_delta``.

    Raises:
        SourceError: the table or snapshot does not exist, or it has no rows.
        PipelineError: pyiceberg is not installed, or the snapshot has delete files.

    Examples:
        >>> import cedar
        >>> cedar.read_iceberg(3)
        Traceback (most recent call last):
        ...
        cedar.PipelineError: ...
    """
    from cedar.datasets import snapshots

    return start(lambda: snapshots.read_iceberg(table, snapshot_id, columns, storage_options), storage_options)
