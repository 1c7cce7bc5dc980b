"""Clusters a log by session: rewrites it so that the rows of a session are adjacent, in order of time.

The algorithm works on logs larger than memory. The first pass assigns rows to parts by a hash of their session, and
writes the parts to files next to the result. The second pass sorts each part. Both passes consist of tasks that can run
in any order, in local threads or on the workers of a Dask cluster. Tasks can be repeated after an interruption.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow.parquet as pq

from cedar.cluster.dask.clients import ask, connected, wait_for_workers
from cedar.core.errors import PipelineError, SourceError, WorkerError, invalid_call
from cedar.core.limits import parse_bytes
from cedar.core.printable import redact_url
from cedar.core.process import cores
from cedar.datasets.parquet import read_parquet
from cedar.lake.layouts import describe, layout_of
from cedar.recommendation.histories import History
from cedar.recommendation.sorting import LEVELS, write_part
from cedar.recommendation.spill import Job, check_columns, nullable, pieces, spill
from cedar.store.files import MARK, ForeignFile, acquire, make_owned, release, remove_file, remove_tree, write_whole

_MAX_PARTS = 4096
_KIND = "clustering 1"
_TMP = r"(\.tmp-[0-9a-f]{12})?"
_WRITTEN = re.compile(
    rf"\.?plan\.json{_TMP}|\.?piece-\d{{5,}}\.arrow(\.nulls)?{_TMP}|out/\.?part-\d{{5,}}\.parquet(\.done)?{_TMP}"
)


@dataclass(frozen=True)
class Clustered:
    """The result of ``cluster``.

    Args:
        files: paths of the Parquet files.
        rows, row_groups: number of rows and of row groups.
        bytes_in, bytes_out: total sizes of the files read and written.
        layout: encoding and compression of each column, as in the first file.
    """

    files: tuple[str, ...]
    rows: int
    row_groups: int
    bytes_in: int
    bytes_out: int
    layout: dict[str, list[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        ratio = self.bytes_in / max(self.bytes_out, 1)
        return (
            f"{self.rows:,} rows in {len(self.files)} file(s), {self.row_groups} row group(s); "
            f"{self.bytes_in / 1e6:,.1f} MB became {self.bytes_out / 1e6:,.1f} MB ({ratio:.2f}x smaller)\n"
            f"stored as {describe(self.layout)}"
        )


def cluster(  # noqa: PLR0913 - all are keyword arguments
    paths: Any,
    out: str | os.PathLike[str],
    *,
    session: str,
    sort: str,
    columns_first: Sequence[str] = (),
    gap: float | None = None,
    unit: str = "s",
    histories: Sequence[History] = (),
    row_group_rows: int = 65_536,
    compression: str = "auto",
    memory: str = "1GiB",
    workers: int | None = None,
    address: str | None = None,
) -> Clustered:
    """Rewrite Parquet files so that the rows of a session are adjacent, in order of time.

    Each session is within one row group, so a shuffle with ``by=`` keeps sessions whole; two neighboring ranks share at
    most one session. Sessions are ordered by their first time. For each column, cedar chooses the layout whose first
    rows are cheapest to read, among layouts that compress repeated rows about as well as zstd.

    Args:
        paths: any fsspec URL, glob, directory, or a list of them.
        out: a local folder, or one that all workers can access; it must be empty or not exist. The folder appears when
            all files are written. An interrupted run leaves ``out`` + ".part"; the same call then continues the run.
        session: the column that identifies sessions; if ``gap`` is set, the column that identifies users.
        sort: the column of times. Rows with equal times keep the order in which they were read.
        columns_first: frequently read columns, which are stored first and adjacent to each other.
        gap: minutes without rows of a user after which a new session begins. cedar then adds a column ``session_id``
            and clusters by it.
        unit: unit of times that are plain numbers: "s", "ms", "us" or "ns".
        histories: columns to add, defined by ``history``; a history with ``at="session"`` requires ``gap``.
        row_group_rows: minimum rows per row group, except for the last one of a file.
        compression: "auto" chooses for each column the layout that reads fastest and takes at most 1.1 times the bytes
            of zstd; "zstd" or "lz4" applies to all columns.
        memory: approximate limit for all tasks together. Each task needs at least one row group and one session.
        workers: number of concurrent tasks; by default one per core, or on a cluster one per thread.
        address: address of a Dask scheduler whose workers run the tasks and can access ``paths`` and ``out``.

    Raises:
        PipelineError: a column does not exist, or ``out`` is not empty.
        RowError: the session or time of a row is null.
        SourceError: a file cannot be read or written, or another process writes to the same ``out``.
        WorkerError: the Dask scheduler does not answer.

    Examples:
        >>> import pyarrow as pa, pyarrow.parquet as pq
        >>> pq.write_table(pa.table({"user": [1, 2, 1, 2], "ts": [0, 1, 2, 3]}), "log.parquet")
        >>> made = cluster("log.parquet", "clustered", session="user", sort="ts")
        >>> made.rows, pq.read_table("clustered")["user"].to_pylist()
        (4, [1, 1, 2, 2])
    """
    if "://" in os.fspath(out):
        raise invalid_call(f"cluster writes into folders, not to {redact_url(os.fspath(out))}", fix="copy it there")
    out = os.path.abspath(os.fspath(out))
    if any(made.at == "session" for made in histories) and gap is None:
        raise invalid_call('cluster: history(at="session") needs session boundaries', fix="give gap=, in minutes")
    if row_group_rows < 1 or (workers is not None and workers < 1) or (gap is not None and not gap > 0):
        raise invalid_call("cluster: row_group_rows, workers and gap must be above 0")
    if compression not in LEVELS:
        raise invalid_call(f"cluster: compression={compression!r}", fix=f"use one of {', '.join(LEVELS)}")
    _require_empty(out)
    source = read_parquet(paths)
    with _tasks(workers, address) as (run, at_once):
        splits = source.splits()
        size = sum(split.bytes or 0 for split in splits)
        rows = sum(split.rows or 0 for split in splits)
        if not rows:
            raise SourceError(f"cluster: {source.describe()} has no rows", done="nothing was written")
        share = max(parse_bytes(memory, "memory") // (6 * at_once), size * min(row_group_rows, rows) // rows)
        parts = max(math.ceil(size / max(share, 1)), min(at_once, rows // row_group_rows), 1)
        job = Job(
            source, session, sort, out + ".part", min(parts, _MAX_PARTS), share, row_group_rows,
            tuple(columns_first), gap, unit, tuple(histories), compression=compression,
        )  # fmt: skip
        check_columns(job)
        with _folder(job):
            try:
                todo = pieces(splits, share)
                run(spill, job, [(i, piece) for i, piece in enumerate(todo) if not os.path.exists(job.spilled(i))])
                job = replace(job, nullable=nullable(job, len(todo)))
                missing = [i for i in range(job.parts) if not os.path.exists(f"{job.part(i)}.done")]
                run(write_part, job, [(i, len(todo)) for i in missing])
                files = _finish(job, out, rows)
            except OSError as error:
                raise SourceError(
                    f"cluster: {error}", done=f"finished parts are in {job.folder!r}; the same call continues there",
                    fix="check space and permissions",
                ) from error  # fmt: skip
    metas = [pq.read_metadata(path) for path in files]
    return Clustered(
        tuple(files), sum(m.num_rows for m in metas), sum(m.num_row_groups for m in metas),
        sum(file.size or 0 for file in source.listing), sum(map(os.path.getsize, files)), layout_of(files[0]),
    )  # fmt: skip


# ---- tasks -----------------------------------------------------------------------------------------------------------

_POLL_SECONDS = 2.0  # seconds between checks that a Dask cluster has workers
_KEPT = "finished parts are kept, and the same call continues"
Run = Callable[[Callable[..., Any], Job, list[tuple[Any, ...]]], None]


@contextlib.contextmanager
def _tasks(workers: int | None, address: str | None) -> Iterator[tuple[Run, int]]:
    """Return a function that runs tasks, and the number of tasks that it runs concurrently."""
    if address is None:
        at_once = workers or cores()
        with ThreadPoolExecutor(at_once, thread_name_prefix="cedar-cluster") as pool:

            def run(fn: Callable[..., Any], job: Job, tasks: list[tuple[Any, ...]]) -> None:
                futures = [pool.submit(fn, job, *task) for task in tasks]
                try:
                    for future in futures:
                        future.result()
                finally:  # the first error cancels the rest
                    for future in futures:
                        future.cancel()

            yield run, at_once
        return
    with connected(address, "cedar-cluster") as client:
        from distributed import KilledWorker, wait

        at_once = workers or sum(ask(client, client.nthreads).values())
        if not at_once:
            raise WorkerError(f"the Dask cluster at {address} has no worker", fix=f"start one: dask worker {address}")

        def run_on_cluster(fn: Callable[..., Any], job: Job, tasks: list[tuple[Any, ...]]) -> None:
            sent = client.scatter(job, broadcast=True, hash=False)  # send the footers of all files once
            futures = [client.submit(fn, sent, *task, pure=False) for task in tasks]
            try:
                while not any(future.status == "error" for future in futures):  # which gather raises
                    with contextlib.suppress(TimeoutError), client.as_current():
                        wait(futures, timeout=_POLL_SECONDS)  # type: ignore[no-untyped-call]
                        break
                    wait_for_workers(client, address)
                client.gather(futures)
            except KilledWorker as error:
                raise WorkerError(
                    f"workers of the Dask cluster at {address} died repeatedly: {error}",
                    done=_KEPT, fix="give less memory=",
                ) from error  # fmt: skip
            except WorkerError as error:  # no worker is left, or the scheduler does not answer
                error.done = _KEPT
                raise
            finally:
                client.cancel(futures)

        yield run_on_cluster, at_once


# ---- the folder ------------------------------------------------------------------------------------------------------


def _require_empty(out: str) -> None:
    if os.path.exists(out) and (not os.path.isdir(out) or os.listdir(out)):
        raise invalid_call(f"cluster: {out!r} already exists", fix="remove it, or choose another folder")


@contextlib.contextmanager
def _folder(job: Job) -> Iterator[None]:
    """Create the folder for intermediate files, or reuse the folder of an interrupted run of the same job."""
    try:
        make_owned(job.folder, _KIND, 0o777)
    except ForeignFile as error:
        raise PipelineError(f"cluster: {error}", fix="move it away, or choose another folder") from error
    plan, lock, locked_elsewhere = os.path.join(job.folder, "plan.json"), None, False
    try:
        lock = acquire(os.path.join(job.folder, "lock"))
    except BlockingIOError:
        locked_elsewhere = True
    try:
        # Without locks, several processes may do the same work. That is safe, as they rename finished files atomically.
        if locked_elsewhere or (
            lock is None and os.path.exists(plan) and not _has_content(plan, _job_description(job))
        ):
            raise SourceError(
                f"cluster: another process writes {job.folder!r}, or was killed", done="nothing was written",
                fix="wait for it; if no process is running, remove that folder",
            )  # fmt: skip
        if not _has_content(plan, _job_description(job)):
            _clear(job.folder)
            os.makedirs(os.path.join(job.folder, "out"), exist_ok=True)
            write_whole(plan, _job_description(job).encode())
        yield
    finally:
        release(lock)


def _clear(folder: str) -> None:
    """Remove the files of another job, and the folder unless it contains unknown files."""
    out = os.path.join(folder, "out")
    below = [f"out/{name}" for name in os.listdir(out)] if os.path.isdir(out) else []
    for name in (*below, *os.listdir(folder)):
        remove_file(folder, name, _KIND, _WRITTEN)


def _has_content(plan: str, description: str) -> bool:
    try:
        with open(plan, encoding="utf-8") as stream:
            return stream.read() == description
    except OSError:
        return False


def _job_description(job: Job) -> str:
    """Return all settings that determine the output. An interrupted run continues only if they are unchanged."""
    import polars as pl

    known = replace(job, source=None)  # type: ignore[arg-type]
    return json.dumps([repr(known), job.source.identity(), job.source.digest(), pl.__version__])


def _finish(job: Job, out: str, rows: int) -> list[str]:
    """Move the result to its destination.

    Raises:
        SourceError: rows are missing.
    """
    folder = os.path.join(job.folder, "out")
    written = 0
    for number in range(job.parts):
        done = f"{job.part(number)}.done"
        with open(done, encoding="utf-8") as stream:
            written += int(stream.read())
    if written != rows:
        raise SourceError(
            f"cluster: {written:,} rows were written, of {rows:,}", fix=f"remove {job.folder!r}, try again"
        )
    for name in os.listdir(folder):
        if not name.endswith(".parquet"):
            remove_file(job.folder, f"out/{name}", _KIND, _WRITTEN)
    if os.path.isdir(out):
        os.rmdir(out)
    os.replace(folder, out)
    _clear(job.folder)
    if not set(os.listdir(job.folder)) - {"lock", MARK}:
        remove_tree(job.folder, _KIND)
    return [os.path.join(out, name) for name in sorted(os.listdir(out))]
