"""The first pass of clustering: writes each piece of the input to a file, divided into parts by session."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from cedar.core.block import Block
from cedar.core.cursor import Keys
from cedar.core.errors import PipelineError, RowError, RowRef, missing_column
from cedar.datasets.base import Split
from cedar.datasets.parquet import ParquetSource
from cedar.datasets.to_arrow import arrow_batch
from cedar.recommendation.histories import History
from cedar.recommendation.rows import Ints, column_of, take_rows
from cedar.store.files import temporary_name, write_whole

_OPTIONS = {"compression": "lz4"}


@dataclass(frozen=True)
class Job:
    """The settings of a clustering run, which are the same in every task.

    Args:
        folder: folder for intermediate files, which every worker can access.
        parts: number of groups of sessions; each group becomes a file.
        piece_bytes: maximum decoded bytes that a task processes at a time.
        nullable: columns with nulls, also inside lists, as found by the first pass. Other columns are written as
            non-nullable, which decodes faster.
        compression: compression of the result's files.
    """

    source: ParquetSource
    session: str
    sort: str
    folder: str
    parts: int
    piece_bytes: int
    row_group_rows: int
    first: tuple[str, ...] = ()
    gap: float | None = None
    unit: str = "s"
    histories: tuple[History, ...] = ()
    session_into: str = "session_id"
    nullable: frozenset[str] = frozenset()
    compression: str = "zstd"

    def spilled(self, number: int) -> str:
        return os.path.join(self.folder, f"piece-{number:05d}.arrow")

    def part(self, number: int) -> str:
        return os.path.join(self.folder, "out", f"part-{number:05d}.parquet")


def check_columns(job: Job) -> None:
    """Raise if a column does not exist or cannot be sorted."""
    schema = job.source.schema()
    made = [history.into for history in job.histories] + ([job.session_into] if job.gap is not None else [])
    looked_at = [name for history in job.histories for name in (history.column, history.where) if name is not None]
    for name in (job.session, job.sort, *looked_at, *(name for name in job.first if name not in made)):
        if name not in schema:
            raise missing_column(name, list(schema), "cluster")
    for name in (job.session, job.sort):
        if pt.is_nested(schema[name]):
            raise PipelineError(f"cluster: column {name!r} of {schema[name]} has no order", fix="name another column")
    for name in made:
        if name in schema or made.count(name) > 1:
            raise PipelineError(f"cluster: there is a column {name!r} already", fix="choose another name with into=")


def pieces(splits: Sequence[Split], piece_bytes: int) -> list[list[Split]]:
    """Group consecutive splits into pieces, one per task: as many splits as fit in memory, at least one."""
    runs: list[list[Split]] = []
    size = 0
    for split in splits:
        if not runs or size + (split.bytes or 0) > piece_bytes:
            runs.append([])
            size = 0
        runs[-1].append(split)
        size += split.bytes or 0
    return runs


def spill(job: Job, number: int, splits: Sequence[Split]) -> int:
    """Write one piece of the input with a record batch per part, and return its number of rows. It is idempotent."""
    path = job.spilled(number)
    table = pa.concat_tables([t for split in splits for t in _tables(job, split)])
    part = parts_of(column_of(table, job.session, "cluster"), job.parts)
    order = np.argsort(part, kind="stable").astype(np.int64)
    table = take_rows(table, order)
    cuts = np.searchsorted(part[order], np.arange(job.parts + 1)).tolist()
    options = pa.ipc.IpcWriteOptions(**_OPTIONS)
    with (
        pa.OSFile(fresh := temporary_name(path), "wb") as sink,
        pa.ipc.new_file(sink, table.schema, options=options) as writer,
    ):
        for start, stop in pairwise(cuts):
            writer.write_batch(_one_batch(table, start, stop))
    write_whole(f"{path}.nulls", json.dumps([n for n in table.column_names if _has_nulls(table.column(n))]).encode())
    os.replace(fresh, path)
    return int(table.num_rows)


def _has_nulls(column: Any) -> bool:
    if column.null_count:
        return True
    kind = column.type
    if pt.is_struct(kind) or pt.is_map(kind):
        return True  # assume that there are nulls
    listed = pt.is_large_list(kind) or pt.is_fixed_size_list(kind)
    return listed and any(_has_nulls(chunk.flatten()) for chunk in getattr(column, "chunks", [column]))


def nullable(job: Job, files: int) -> frozenset[str]:
    """Return the columns in which the first pass found nulls."""
    names: set[str] = set()
    for number in range(files):
        with open(f"{job.spilled(number)}.nulls", encoding="utf-8") as reported:
            names.update(json.load(reported))
    return frozenset(names)


def _one_batch(table: Any, start: int, stop: int) -> Any:
    cut = table.slice(start, stop - start).combine_chunks().to_batches()
    if cut:
        return cut[0]
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in table.schema], schema=table.schema)


def read_part(job: Job, part: int, files: int) -> Iterator[Any]:
    """Yield the rows of a part, piece by piece, in input order."""
    for number in range(files):
        with pa.memory_map(job.spilled(number)) as source:
            batch = pa.ipc.open_file(source).get_batch(part)
            if batch.num_rows:
                yield pa.Table.from_batches([batch])


def _tables(job: Job, split: Split) -> Iterator[Any]:
    row = split.start
    for chunk in job.source.read(split):
        keys = Keys(np.arange(row, row + chunk.rows, dtype=np.int64))
        batch = arrow_batch(Block(chunk.columns, keys))
        for name in (job.session, job.sort):
            _refuse_nulls(job, batch.column(name), name, split, row)
        row += chunk.rows
        yield pa.Table.from_batches([batch])


def _refuse_nulls(job: Job, column: pa.Array, name: str, split: Split, row: int) -> None:
    if column.null_count:
        at = row + int(column.is_null().to_numpy(zero_copy_only=False).argmax())
        role = "the session" if name == job.session else "the time"
        raise RowError(
            f"cluster: {role}, column {name!r}, is null",
            row=RowRef(0, split.file, at, url=job.source.url(split.file)),
            done="nothing was written",
            fix="fill or filter those rows first",
        )


def parts_of(column: pa.Array, parts: int, salt: int = 0) -> npt.NDArray[np.int64]:
    """Return the part of each row, by a hash of its session."""
    if parts == 1:
        return np.zeros(len(column), dtype=np.int64)
    import polars as pl

    hashes = pl.Series("session", column).hash(seed=salt).to_numpy()
    numbers: Ints = (hashes % np.uint64(parts)).astype(np.int64)
    return numbers
