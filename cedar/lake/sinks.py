"""Write blocks as Parquet files with bounded memory. Files only become visible when all of them are complete."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import pyarrow as pa

from cedar.core.block import Block
from cedar.core.errors import PipelineError, invalid_call
from cedar.core.printable import StorageOptions
from cedar.datasets.storage import Storage
from cedar.datasets.to_arrow import arrow_batch, same_schema
from cedar.lake.formats import Parquet
from cedar.lake.layouts import Layouts, with_required
from cedar.lake.parts import PartFiles

_GROUP_BYTES = 64 << 20  # target bytes of a row group
_GROUP_ROWS = 65_536  # maximum rows of a row group by default


def write_parquet(
    blocks: Iterable[Block],
    url: str | os.PathLike[str],
    *,
    row_group_rows: int | None = None,
    rows_per_file: int | None = None,
    never_null: Collection[str] = (),
    storage_options: StorageOptions | None = None,
) -> list[str]:
    """Write blocks as Parquet files with a layout that reads fast (see ``layouts``), and return their URLs.

    Args:
        blocks: blocks with the same columns.
        url: a directory, or a file if it ends in ``.parquet``.
        row_group_rows: rows of a row group. The default is about 64 MiB and at most 65,536 rows.
        rows_per_file: rows of a file. By default, a new file begins after 512 MiB.
        never_null: columns to mark as non-nullable, including items of lists.

    Raises:
        PipelineError: data files exist already, or a column holds Python objects.
        SourceError: a file cannot be written.

    Examples:
        >>> import numpy as np, pyarrow as pa
        >>> from cedar.core.cursor import Keys
        >>> block = Block({"x": pa.array([1, 2])}, Keys(np.arange(2)))
        >>> [url.rpartition("/")[2] for url in write_parquet([block], "out")]
        ['part-00000.parquet']
    """
    for option, value in (("row_group_rows", row_group_rows), ("rows_per_file", rows_per_file)):
        if value is not None and value < 1:
            raise invalid_call(f"write_parquet({option}={value}): must be at least 1")
    with Storage.at(url, Parquet.suffix, storage_options) as storage, contextlib.ExitStack() as stack:
        parquet = Parquet(Layouts("fast", "disk" if storage.local else "url"))
        parts = PartFiles(storage, parquet, "part-{:05d}.parquet".format, None if storage.single else rows_per_file)
        stack.callback(parts.drop)
        room = rows_per_file
        for table in _row_groups(_batches(blocks, parquet), row_group_rows):
            start = 0
            while start < table.num_rows or not table.num_rows:
                piece = table.slice(start, room)
                parts.add("", piece.num_rows, parquet.encode(with_required(piece, never_null)))
                if room is not None and rows_per_file is not None:
                    room = room - piece.num_rows or rows_per_file
                start += piece.num_rows
                if not table.num_rows:
                    break
        parts.end()
        parts.take_done()  # ``storage`` renames them at its exit
    return storage.urls()


def _batches(blocks: Iterable[Block], parquet: Parquet) -> Iterator[Any]:
    schema = None
    for block in blocks:
        batch = arrow_batch(block)
        if schema is None:
            schema = batch.schema
            if not schema.names:
                raise PipelineError("write_parquet: there is no column to write")
            parquet.check(schema)
        same_schema(schema, batch.schema)
        yield batch


def _row_groups(batches: Iterator[Any], rows: int | None) -> Iterator[Any]:
    """Yield tables of exactly ``rows`` rows; only the last one may be smaller. Without rows, yield one empty table."""
    pending: list[Any] = []
    count = 0
    written = False
    for batch in batches:
        pending.append(batch)
        count += batch.num_rows
        if rows is None and count >= 64:
            sample = pa.Table.from_batches(pending).slice(0, 64)
            rows = group_rows(sample.nbytes / sample.num_rows)
        while rows is not None and count >= rows:
            table = pa.Table.from_batches(pending)
            yield table.slice(0, rows)
            written = True
            count -= rows
            pending = table.slice(rows).to_batches()
    if count or (pending and not written):
        yield pa.Table.from_batches(pending)


def group_rows(row_bytes: float, factor: int = 1) -> int:
    """Return a number of rows, a power of two, that take about ``factor`` * 64 MiB at ``row_bytes`` bytes each.

    Examples:
        >>> group_rows(8.0), group_rows(1 << 20), group_rows(1 << 20, 4)
        (65536, 64, 256)
    """
    wanted = factor * _GROUP_BYTES / max(1.0, row_bytes)
    return int(min(factor * _GROUP_ROWS, max(16, 1 << max(0, int(wanted).bit_length() - 1))))
