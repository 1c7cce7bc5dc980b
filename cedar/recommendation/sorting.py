"""The second pass of clustering: sorts each part into a Parquet file whose row groups contain whole sessions."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from cedar.lake.layouts import Layouts
from cedar.recommendation.histories import history_columns, session_begins, time_order, with_column
from cedar.recommendation.rows import Flags, Ints, codes_of, column_of, ordinals, run_start, take_rows
from cedar.recommendation.spill import Job, parts_of, read_part
from cedar.store.files import temporary_name, write_whole

MARK = b"cedar.clustered"  # metadata key whose value names the columns by which a file is clustered
LEVELS = {
    "auto": None,
    "zstd": 3,
    "lz4": 3,
}  # compression levels; higher levels take longer to write and save little
_PAGE = 1 << 20  # bytes of a page; pages are compressed separately, so only repeats within a page are found


def write_part(job: Job, part: int, files: int) -> int:
    """Write one part, unless it is empty, and return its number of rows."""
    path = job.part(part)
    writer = None
    rows = sessions = 0
    try:
        for table in _load_in_portions(job, part, files):
            ordered, first = sort_sessions(job, table, part, sessions)
            sessions += int(first.sum())
            if writer is None:
                writer = _writer(job, fresh := temporary_name(path), ordered)
            for start, stop in group_cuts(first, job.row_group_rows):
                writer.write_table(ordered.slice(start, stop - start), row_group_size=stop - start)
            rows += ordered.num_rows
    finally:
        if writer is not None:
            writer.close()
    if writer is not None:
        os.replace(fresh, path)
    write_whole(f"{path}.done", str(rows).encode())
    return rows


def _load_in_portions(job: Job, part: int, files: int) -> Iterator[Any]:
    """Yield the rows of a part as tables. If they exceed memory, divide them by another hash into several passes."""
    tables: list[Any] = []
    size = 0
    for table in read_part(job, part, files):
        size += table.nbytes
        if size <= 2 * job.piece_bytes:
            tables.append(table)
        else:
            tables.clear()
    if size <= 2 * job.piece_bytes:
        if tables:
            yield pa.concat_tables(tables)
        return
    passes = math.ceil(size / job.piece_bytes)
    for number in range(passes):
        for table in read_part(job, part, files):
            mine = parts_of(column_of(table, job.session, "cluster"), passes, salt=1) == number
            if mine.any():
                tables.append(take_rows(table, np.flatnonzero(mine).astype(np.int64)))
        if tables:
            yield pa.concat_tables(tables)
        tables.clear()


def sort_sessions(job: Job, table: Any, part: int, sessions: int) -> tuple[Any, Flags]:
    """Return the sorted rows with added columns, and a mask of the rows that begin a session.

    Sessions are sorted by their first time, and the rows of a session by time.

    Args:
        part: index of the part.
        sessions: number of sessions of this part that were sorted before.
    """
    keys, times = column_of(table, job.session, "cluster"), column_of(table, job.sort, "cluster")
    order = time_order(keys, times)
    users, new = session_begins(codes_of(keys)[order], times.take(pa.array(order)), job.gap, job.unit, job.sort)
    needed = {name for made in job.histories for name in (made.column, made.where) if name is not None}
    slim = take_rows(table.select([name for name in table.column_names if name in needed]), order)
    made = history_columns(slim, users, new, job.histories)
    began = ordinals(times)[order][run_start(new)]
    again = np.lexsort((np.cumsum(new), began)).astype(np.int64)
    whole = take_rows(table, order[again])
    first: Flags = new[again]
    for name, lists in made.items():
        whole = with_column(whole, name, take_rows(pa.table({name: lists}), again).column(0))
    if job.gap is not None:
        numbers = np.cumsum(first) - 1 + sessions + (part << 40)
        whole = with_column(whole, job.session_into, pa.array(numbers))
    whole = whole.select([*job.first, *(name for name in whole.column_names if name not in job.first)])
    return whole.cast(pa.schema([_field(job, field) for field in whole.schema])), first


def _field(job: Job, field: Any) -> Any:
    if field.name in job.nullable:
        return field
    return pa.field(field.name, _non_nullable(field.type), nullable=False)


def _non_nullable(kind: Any) -> Any:
    if not pt.is_large_list(kind):
        return kind
    return pa.large_list(pa.field("item", _non_nullable(kind.value_type), nullable=False))


def group_cuts(first: Flags, rows: int) -> list[tuple[int, int]]:
    """Divide rows into groups of at least ``rows`` rows (the last may have fewer) without splitting a session.

    Examples:
        >>> group_cuts(np.array([True, False, True, False, False, True]), 3)
        [(0, 5), (5, 6)]
    """
    bounds: Ints = np.append(np.flatnonzero(first), len(first))
    cuts, start = [], 0
    while start < len(first):
        end = min(int(np.searchsorted(bounds, start + rows)), len(bounds) - 1)
        stop = int(bounds[end])
        if len(first) - stop < rows // 2:  # add a small rest to the previous group
            stop = len(first)
        cuts.append((start, stop))
        start = stop
    return cuts


def read_mark(mark: bytes | None) -> tuple[str, str] | None:
    """Return the (session, sort) columns by which a file is marked as clustered; None without a mark."""
    try:
        reported = json.loads(mark or b"")
        return str(reported["session"]), str(reported["sort"])
    except (ValueError, KeyError, TypeError):
        return None


def _writer(job: Job, path: str, first: Any) -> Any:
    mark = {"session": job.session if job.gap is None else job.session_into, "sort": job.sort}
    schema = first.schema.with_metadata({MARK: json.dumps(mark).encode()})
    level = LEVELS[job.compression]
    if level is None:
        how = Layouts("small", "disk").options(first)
    else:  # with a dictionary, the compressor would not find long repeats
        how = {"compression": job.compression, "compression_level": level, "use_dictionary": False}
    return pq.ParquetWriter(path, schema, data_page_size=_PAGE, write_page_checksum=True, **how)
