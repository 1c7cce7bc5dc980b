"""Inspects a log: session lengths, whether sessions are contiguous, repeated values, the effect of deduplication."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

import cedar
from cedar import Pipeline
from cedar.core.block import Block
from cedar.core.cursor import Keys
from cedar.core.errors import RowError, RowRef, SourceError, invalid_call, missing_column
from cedar.core.printable import one_line
from cedar.datasets.base import Split
from cedar.datasets.parquet import ParquetSource, read_parquet
from cedar.datasets.to_arrow import arrow_batch
from cedar.operators.dedup_estimate import Estimate, Reach, Sampled
from cedar.recommendation.rows import codes_of, column_of, ordinals, starts_run, take_rows
from cedar.recommendation.sorting import MARK, read_mark
from cedar.recommendation.spill import parts_of


@dataclass(frozen=True)
class Feature:
    """Measurements of a column of lists or of single values.

    Args:
        repeats: share of rows equal to the previous row of their session (d in the RecD paper).
        length: mean number of values per row.
        now, clustered: deduplication factor of batches, with rows in the current order and after clustering.
    """

    name: str
    repeats: float
    length: float
    now: float
    clustered: float

    def __str__(self) -> str:
        name = one_line(self.name)
        return f"{name:<24} {self.length:>12.3g} {self.repeats:>6.3f} {self.now:>11.2f} {self.clustered:>10.2f}"


@dataclass(frozen=True)
class Inspection:
    """The result of ``inspect``.

    Args:
        rows, files, row_groups: totals of the whole log.
        looked_at: number of leading rows from which all following figures were computed.
        batch: number of rows per batch.
        sessions, samples: number of sessions in these rows, and mean rows per session (S in the RecD paper).
        samples_in_batch: mean rows per session within a batch, with rows in the current order.
        split: number of sessions whose rows are not adjacent, or are in several row groups.
        backwards: number of rows with an earlier time than the previous row of their session; None without times.
    """

    rows: int
    files: int
    row_groups: int
    looked_at: int
    batch: int
    sessions: int
    samples: float
    samples_in_batch: float
    split: int
    backwards: int | None
    features: tuple[Feature, ...]

    @property
    def clustered(self) -> bool:
        """Return whether sessions are contiguous and, if times are known, in order of time."""
        return not self.split and not self.backwards

    def __str__(self) -> str:
        if self.clustered:
            how = "clustered: sessions are contiguous" + (", in order of time" if self.backwards is not None else "")
        elif self.split:
            how = f"interleaved: {self.split:,} of {self.sessions:,} sessions are not contiguous; `cedar data cluster`"
        else:
            how = f"sessions are contiguous, but {self.backwards:,} rows are out of order; `cedar data cluster`"
        size = f"{self.rows:,} rows in {self.files} file(s), {self.row_groups} row group(s)"
        sessions = f"{self.sessions:,} sessions, S {self.samples:.3g} rows each"
        return "\n".join([
            f"{size}; the first {self.looked_at:,} were inspected",
            f"{sessions}, {self.samples_in_batch:.3g} of them in a batch of {self.batch:,}",
            how,
            f"{'feature':<24} {'values a row':>12} {'d':>6} {'factor now':>11} {'clustered':>10}",
            *map(str, sorted(self.features, key=lambda f: -f.clustered * f.length)),
        ])  # fmt: skip


def inspect(paths: Any, *, session: str, sort: str | None = None, batch: int = 2048, rows: int = 500_000) -> Inspection:
    """Inspect the leading rows of a log in Parquet files. These rows must fit in memory.

    Args:
        paths: any fsspec URL, glob, directory, or a list of them.
        session, sort: the columns of session ids and of times.
        batch: number of rows per batch, for the deduplication factor.
        rows: number of leading rows to inspect.

    Raises:
        PipelineError: a column does not exist.
        RowError: the session of a row is null.

    Examples:
        >>> import pyarrow.parquet as pq
        >>> pq.write_table(pa.table({"s": [1, 2, 1, 2], "h": [[5], [6], [5], [6]]}), "log.parquet")
        >>> found = inspect("log.parquet", session="s", batch=2)
        >>> found.clustered, found.samples, found.features[0].clustered
        (False, 2.0, 2.0)
    """
    source = read_parquet(paths)
    schema = source.schema()
    for name in filter(None, (session, sort)):
        if name not in schema:
            raise missing_column(name, list(schema), "inspect")
    if batch < 1 or rows < 1:
        raise invalid_call("inspect: batch and rows must be at least 1")
    names = [name for name, kind in schema.items() if isinstance(kind, pa.DataType) and name not in (session, sort)]
    splits = source.splits()
    tables, runs = [], []
    for _, table in _tables(source.select([session, *filter(None, [sort]), *names]), splits, session, rows):
        tables.append(table)
        runs.append(starts_run(codes_of(column_of(table, session, "inspect"))))  # each row group begins a new run
    if not tables:
        raise SourceError(f"inspect: {source.describe()} has no rows")
    table = pa.concat_tables(tables)
    codes = codes_of(column_of(table, session, "inspect"))
    sessions = int(codes.max()) + 1
    pieces = np.bincount(codes[np.concatenate(runs)], minlength=sessions)
    return Inspection(
        sum(split.rows or 0 for split in splits), len(source.listing), len(splits), table.num_rows, batch, sessions,
        len(codes) / sessions, _mean_session_rows(codes, batch), int((pieces > 1).sum()),
        None if sort is None else _count_backwards(codes, column_of(table, sort, "inspect")),
        _features(table, codes, sort, names, batch),
    )  # fmt: skip


def _mean_session_rows(codes: Any, batch: int) -> float:
    cut = np.arange(len(codes)) // batch
    return len(codes) / len(np.unique(cut * (codes.max() + 1) + codes))


def _count_backwards(codes: Any, times: pa.Array) -> int:
    order = np.argsort(codes, kind="stable")
    same = codes[order][1:] == codes[order][:-1]
    now = ordinals(times)[order]
    return int((same & (now[1:] < now[:-1])).sum())


def _features(table: Any, codes: Any, sort: str | None, names: list[str], batch: int) -> tuple[Feature, ...]:
    """Measure every column with rows in the current order, and in the order that clustering would produce."""
    keys = (codes,) if sort is None else (ordinals(column_of(table, sort, "inspect")), codes)
    order = np.lexsort(keys).astype(np.int64)
    session = pa.array(codes)
    features = []
    for name in names:
        column = column_of(table, name, "inspect")
        if pt.is_struct(column.type):
            continue
        lists = column if pt.is_large_list(column.type) else _as_lists(column)
        now: Estimate = Sampled({name: lists}, session, Reach(batch, batch)).estimate([name])
        moved = take_rows(pa.table({name: lists, "session": session}), order)
        later = Sampled(
            {name: column_of(moved, name, "inspect")}, column_of(moved, "session", "inspect"), Reach(batch)
        ).estimate([name])
        features.append(Feature(name, later.repeats, later.length, now.factor, later.factor))
    return tuple(features)


def _as_lists(column: pa.Array) -> pa.Array:
    """Wrap single values in lists, so that all columns are measured in the same way."""
    return pa.LargeListArray.from_arrays(pa.array(np.arange(len(column) + 1)), column)


# ---- check of clustering ---------------------------------------------------------------------------------------------


def check_clustered(paths: Any, *, session: str, sort: str | None = None) -> None:
    """Raise if sessions are split or not in order of time. Reads the columns of sessions and times of all rows.

    The rows of a session must be adjacent and in one row group. The check uses 8 bytes of memory per session.

    Raises:
        SourceError: the log is not clustered; the error names the first misplaced row.
        RowError: the session of a row is null.
        PipelineError: a column does not exist.
    """
    source = read_parquet(paths)
    schema = source.schema()
    names = [session, *([sort] if sort is not None else [])]
    for name in names:
        if name not in schema:
            raise missing_column(name, list(schema), "check_clustered")
    seen: list[Any] = []
    places: list[tuple[Split, Any]] = []
    for split, table in _tables(source.select(names), source.splits(), session, None):
        keys = column_of(table, session, "check_clustered")
        first = starts_run(codes_of(keys))
        if sort is not None:
            times = ordinals(column_of(table, sort, "check_clustered"))
            back = np.flatnonzero(~first[1:] & (times[1:] < times[:-1]))
            if len(back):
                raise _not_clustered(
                    source, split, int(back[0]) + 1, f"is out of order: its {sort!r} is below the previous row's"
                )
        starts = np.flatnonzero(first)
        seen.append(parts_of(keys.take(pa.array(starts)), (1 << 62) - 1))
        places.append((split, starts))
    if not seen:
        return
    every = np.concatenate(seen)
    order = np.argsort(every, kind="stable")
    again = order[1:][every[order][1:] == every[order][:-1]]
    if len(again):
        number = int(again.min())
        for split, starts in places:
            if number < len(starts):
                raise _not_clustered(source, split, int(starts[number]), "belongs to a session that appeared before")
            number -= len(starts)


def _not_clustered(source: ParquetSource, split: Split, row: int, why: str) -> SourceError:
    where = RowRef(0, split.file, split.start + row, url=source.url(split.file))
    return SourceError(
        f"{source.describe()} is not clustered: a row {why}", row=where, done="nothing was read",
        fix="cluster it first: cedar data cluster IN OUT --session ... --sort ...",
    )  # fmt: skip


def read_clustered(paths: Any, *, session: str, sort: str | None = None) -> Pipeline:
    """Read a clustered log with ``read_parquet``, after checking that no session is split.

    Files that ``cluster`` wrote are marked, and need no check if it used the same columns and they are in one folder.
    For other files, cedar reads the columns of sessions and times once.

    Raises:
        SourceError: the log is not clustered; the error names the first misplaced row.

    Examples:
        >>> import pyarrow.parquet as pq
        >>> pq.write_table(pa.table({"s": [1, 1, 2, 2]}), "log.parquet")
        >>> read_clustered("log.parquet", session="s").count()
        4
    """
    source = read_parquet(paths)
    known = [read_mark((footer.metadata or {}).get(MARK)) for footer in source._footers]
    folders = {os.path.dirname(file.path) for file in source.listing.files}  # a session may be in several outputs
    marked = all(mark is not None and mark[0] == session and sort in (None, mark[1]) for mark in known)
    if not marked or len(folders) > 1:
        check_clustered(paths, session=session, sort=sort)
    return cedar.read_parquet(paths)


def _tables(source: ParquetSource, splits: Any, session: str, rows: int | None) -> Iterator[tuple[Split, Any]]:
    """Yield row groups as tables, up to ``rows`` rows in total."""
    left = rows
    for split in splits:
        if left is not None and left <= 0:
            return
        batches = []
        for chunk in source.read(split):
            keys = Keys(np.arange(chunk.rows, dtype=np.int64))
            batches.append(arrow_batch(Block(chunk.columns, keys)))
        table = pa.Table.from_batches(batches)
        column = column_of(table, session, "inspect")
        if column.null_count:
            row = split.start + int(column.is_null().to_numpy(zero_copy_only=False).argmax())
            raise RowError(
                f"the session, column {session!r}, is null", row=RowRef(0, split.file, row, url=source.url(split.file)),
                fix="fill or filter those rows first",
            )  # fmt: skip
        table = table if left is None else table.slice(0, left)
        left = None if left is None else left - table.num_rows
        yield split, table
