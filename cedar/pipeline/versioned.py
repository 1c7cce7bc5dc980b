"""Functions that begin a pipeline with a table that has versions: Delta Lake, Iceberg."""

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
    """Rows of a Delta Lake table: those that are in one version of it. Needs ``cedar-data[delta]``.

    Args:
        uri: a path or URL.
        version: its number; by default the latest, from now on that one, whatever is written meanwhile. A run that
            resumes then reads the version of its state.
        columns: which to read; all by default. Columns that were added later are null in older files.
        storage_options: keys, endpoints and so on: see docs/storage.md.

    Raises:
        SourceError: there is no such table or version, or it has no rows.
        PipelineError: deltalake is not installed, or the table has deletion vectors or renamed columns, which are not
            in its files.

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
    """Rows of an Iceberg table: those that are in one snapshot of it. Needs ``cedar-data[iceberg]``.

    Args:
        table: of pyiceberg, such as ``catalog.load_table("db.clicks")``, or the path or URL of a metadata file.
        snapshot_id: by default the current one, from now on that one; a run that resumes reads that of its state.
        columns, storage_options: as of ``read_delta``.

    Raises:
        SourceError: there is no such table or snapshot, or it has no rows.
        PipelineError: pyiceberg is not installed, or files of the snapshot have rows that are deleted elsewhere.

    Examples:
        >>> import cedar
        >>> cedar.read_iceberg(3)
        Traceback (most recent call last):
        ...
        cedar.PipelineError: ...
    """
    from cedar.datasets import snapshots

    return start(lambda: snapshots.read_iceberg(table, snapshot_id, columns, storage_options), storage_options)
