"""Write tables as Parquet files. The files only become visible when all of them are complete."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pyarrow as pa

from cedar.core.errors import PipelineError
from cedar.core.printable import StorageOptions
from cedar.datasets.storage import Storage, writing
from cedar.lake.formats import Parquet
from cedar.lake.layouts import Layouts

_GROUP_BYTES = 64 << 20  # target bytes of a row group
_GROUP_ROWS = 65_536  # maximum rows of a row group by default


def write_files(
    url: str | os.PathLike[str],
    tables: Iterable[pa.Table],
    rows: int | None = None,
    options: StorageOptions | None = None,
) -> list[str]:
    """Write each table as a Parquet file with a layout that reads fast (see ``layouts``), and return the URLs.

    Args:
        url: a directory, or a single file for all tables if it ends in ``.parquet``.
        tables: tables with the same columns; they are only computed if ``url`` is free.
        rows: rows of a row group. The default is about 64 MiB and at most 65,536 rows.
        options: options of the filesystem.

    Raises:
        PipelineError: data files exist already, or Parquet cannot store a column.
        SourceError: a file cannot be written.

    Examples:
        >>> [url.rpartition("/")[2] for url in write_files("out", [pa.table({"x": [1, 2]})])]
        ['part-00000.parquet']
    """
    with Storage.at(url, Parquet.suffix, options) as storage:
        layouts = Layouts("fast", "disk" if storage.local else "url")
        parquet = Parquet(layouts)
        for number, table in enumerate([pa.concat_tables(tables)] if storage.single else tables):
            if not table.num_columns:
                raise PipelineError("write_parquet: there is no column to write")
            parquet.check(table.schema)
            group = rows or group_rows(table.nbytes / max(1, table.num_rows))
            data = parquet.encode(layouts.with_job_schema(table), group)
            with writing(storage.shown):
                file = storage.create(f"part-{number:05d}.parquet")
                try:
                    file.write(data)
                    file.end()
                except BaseException:
                    file.drop()
                    raise
    return storage.urls()


def group_rows(row_bytes: float, factor: int = 1) -> int:
    """Return a number of rows, a power of two, that take about ``factor`` * 64 MiB at ``row_bytes`` bytes each.

    Examples:
        >>> group_rows(8.0), group_rows(1 << 20), group_rows(1 << 20, 4)
        (65536, 64, 256)
    """
    wanted = factor * _GROUP_BYTES / max(1.0, row_bytes)
    return int(min(factor * _GROUP_ROWS, max(16, 1 << max(0, int(wanted).bit_length() - 1))))
