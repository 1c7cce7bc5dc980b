"""Run ``Pipeline.write``. Tasks encode batches; this process assembles them to files in order, and writes commits."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cedar.core.errors import CedarError, PipelineError, ResumeError, Site, Skip, nearest
from cedar.core.limits import as_int
from cedar.core.printable import StorageOptions, brief
from cedar.core.process import Rank, find_rank
from cedar.datasets.storage import Storage, writing
from cedar.datasets.to_arrow import arrow_batch, same_schema, to_arrow_table
from cedar.engine.delivery.loader import Loader
from cedar.engine.delivery.options import Options
from cedar.lake.commits import Commit, Log
from cedar.lake.encode import Encode, pieces
from cedar.lake.formats import FORMATS, Format
from cedar.lake.lance_table import check_place
from cedar.lake.layouts import describe, merge_nullability, nullable_schema
from cedar.lake.parts import FILE_BYTES, PartFiles
from cedar.lake.sinks import group_rows
from cedar.operators.batch import MakesBatches
from cedar.pipeline.look import progress_line
from cedar.pipeline.planning import PlanOptions, choose_plan, skipping_damaged
from cedar.plan import graph
from cedar.plan.graph import Node

if TYPE_CHECKING:
    from cedar.pipeline.core import Pipeline

RUN_BYTES = FILE_BYTES  # bytes written between two commits with ``partition_by``
_FOLDER_FACTOR = 2  # with ``partition_by``, pieces have this many times more rows


@dataclass(frozen=True)
class Written:
    """The result of ``write``: what this rank has written since the job was begun.

    Args:
        url: the folder.
        files: paths or URLs, in the order of the rows.
        rows: number of rows in these files.
        bytes: bytes of these files.
        resumed: number of files that earlier calls had completed.
        layout: encoding and compression of each column, if cedar chose them.

    Examples:
        >>> written = cedar.from_items([{"x": 1}]).write("numbers")
        >>> written.rows, len(written.files)
        (1, 1)
    """

    url: str
    files: list[str]
    rows: int
    bytes: int
    resumed: int = 0
    layout: dict[str, list[str]] = field(default_factory=dict)

    __repr__ = brief

    def __str__(self) -> str:
        before = f", {self.resumed:,} of them from earlier calls" if self.resumed else ""
        stored = f"\nstored as {describe(self.layout)}" if self.layout else ""
        return f"complete: {self.rows:,} row(s) in {len(self.files):,} file(s) below {self.url}{before}{stored}"


@dataclass(frozen=True)
class Settings:
    """The arguments of ``Pipeline.write``.

    Args:
        subgroup: True ignores the rank and world in the environment.
    """

    url: str
    format: str = "parquet"
    partition_by: str | Sequence[str] | None = None
    rows_per_file: int | None = None
    executor: str | Executor = "auto"
    workers: int | None = None
    rank: int | None = None
    world: int | None = None
    subgroup: bool = False
    on_error: Skip | None = None
    progress: bool | None = None
    layout: str = "fast"
    storage_options: StorageOptions | None = None

    @property
    def folders(self) -> tuple[str, ...]:
        """Return the columns whose values become folder names."""
        by = self.partition_by
        return (by,) if isinstance(by, str) else tuple(by or ())

    def checked(self, site: Site | None) -> Format:
        """Validate the arguments and return the format.

        Raises:
            PipelineError: an argument is invalid.
        """
        if self.format not in FORMATS:
            known = ", ".join(map(repr, nearest(str(self.format), [*FORMATS])))
            raise PipelineError(f"write(format={self.format!r}): unknown format; use one of {known}", site=site)
        rows = as_int(self.rows_per_file)
        if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int) or rows < 1):
            raise PipelineError(f"write(rows_per_file={rows!r}): give an integer of at least 1", site=site)
        form = FORMATS[self.format]
        if self.layout not in form.aims:
            known = " or ".join(map(repr, form.aims))
            raise PipelineError(
                f"write(layout={self.layout!r}): the layout of {self.format!r} files is {known}", site=site,
                fix="help(cedar.Pipeline.write) describes layout=",
            )  # fmt: skip
        if form.joined and self.folders:
            raise PipelineError(
                f"write(format={self.format!r}): a data set has no folders", site=site, fix="leave partition_by= out"
            )
        if self.url.endswith(form.suffix) and not form.joined:
            raise PipelineError(
                f"write({self.url!r}): write() creates a folder of several files",
                site=site,
                fix="leave out the extension",
            )
        return form


def write(pipeline: Pipeline, settings: Settings, site: Site | None) -> Written:
    """Write all rows of a pipeline, or the remaining rows if the job was begun earlier."""
    form = settings.checked(site)
    rank = find_rank(settings.rank, settings.world, settings.subgroup, site)
    log = Log(Storage.at(settings.url, options=settings.storage_options), rank.rank, rank.world)
    try:
        with log.locked():
            job = log.job(form.suffix)
            log.load()
            form = _job_format(form, settings, log)
            if job is not None and not log.commits and job.get("world") == rank.world == 1:
                log.remove_job()  # the user may have fixed the pipeline since
                job = None
            if job is None and form.joined:
                check_place(log.storage.root if log.storage.local else settings.url, settings.storage_options)
            if job is None:
                loader, rows = _begin_job(pipeline, settings, rank, log, form)
            else:
                rows = _check_terms(job, settings, rank, log.storage.shown)
                loader = _loader(pipeline, settings, rank, rows, form)
                _check(loader, job, log.storage.shown)
            before = len(log.files())
            with loader:
                run = WriteRun(settings, log, loader, rows, form, batched=pipeline.node.batched)
                run.all()
            _join_ranks(form, settings, log)
            return _result(log, before)
    except CedarError as error:
        error.site = error.site or site
        done = log.files()
        error.done = (
            error.done or f"{len(done):,} file(s) with {sum(p.rows for p in done):,} rows are complete and kept"
        )
        raise


def _join_ranks(form: Format, settings: Settings, log: Log) -> None:
    """Combine the files of all ranks into one data set, if the format needs it and all ranks are done."""
    if not form.joined:
        return
    logs = [log if rank == log.rank else Log(log.storage, rank, log.world) for rank in range(log.world)]
    for each in logs:
        if each is not log:
            each.load()
    if all(each.commits and each.commits[-1].end for each in logs):
        fields = next((_fields_of(commit) for each in logs for commit in each.commits if commit.schema), None)
        if fields is None:  # there are no rows and no known columns, so there is nothing to join
            return
        files = [(part.name, part.rows, part.bytes) for each in logs for part in each.files()]
        with writing(log.storage.shown, fix="check the storage, and rerun to continue"):
            url = log.storage.root if log.storage.local else settings.url
            form.join(url, files, fields, settings.storage_options)


def _result(log: Log, before: int) -> Written:
    storage, parts = log.storage, log.files()
    files = [storage.show(f"{storage.root}/{part.name}") for part in parts]
    layout = log.commits[-1].layout if log.commits else {}
    return Written(storage.shown, files, sum(p.rows for p in parts), sum(p.bytes for p in parts), before, layout)


def _job_format(form: Format, settings: Settings, log: Log) -> Format:
    """Return the format of this job's files, with the layout and schema of files that are already written."""
    last = next((each for each in reversed(log.commits) if each.schema), None)
    place = "disk" if log.storage.local else "url"
    if last is None:
        return form.for_job(settings.layout, place)
    return form.for_job(settings.layout, place, dict(last.layout), _fields_of(last))


def _fields_of(commit: Commit) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(commit.schema)))


# ---- job description -------------------------------------------------------------------------------------------------


def _begin_job(pipeline: Pipeline, settings: Settings, rank: Rank, log: Log, form: Format) -> tuple[Loader, int]:
    """Begin a new job and write its description. Return its loader and the number of rows per piece."""
    with _loader(pipeline, settings, rank, None, form) as loader:
        sample = loader.sample()
    many = _FOLDER_FACTOR if settings.folders else 1
    rows = group_rows(sample.nbytes / len(sample) if len(sample) else 1024.0, many)
    if settings.rows_per_file is not None:  # pieces must fill files exactly
        rows = settings.rows_per_file // -(-settings.rows_per_file // rows)
    loader = _loader(pipeline, settings, rank, rows, form)
    if loader.units() == math.inf:
        raise PipelineError("write() of an endless pipeline", fix="end it with take(n), or give repeat(n) a number")
    job = log.begin(_terms(settings, rank) | {"rows": rows, "state": loader.state_dict()})
    if _check_terms(job, settings, rank, log.storage.shown) != rows:  # another rank began the job first
        loader = _loader(pipeline, settings, rank, rows := int(job["rows"]), form)
    _check(loader, job, log.storage.shown)
    return loader, rows


def _terms(settings: Settings, rank: Rank) -> dict[str, Any]:
    """Return by name the arguments that must be equal in all calls of a job."""
    return {
        "format": settings.format,
        "partition_by": list(settings.folders),
        "rows_per_file": settings.rows_per_file,
        "world": rank.world,
        "layout": settings.layout,
    }


def _check_terms(job: dict[str, Any], settings: Settings, rank: Rank, where: str) -> int:
    """Check that a begun job has the same arguments, and return its number of rows per piece.

    Raises:
        PipelineError: the job was begun with other arguments.
    """
    job = {"layout": "pyarrow" if settings.format == "parquet" else "fast"} | job  # defaults, for older jobs
    for name, mine in _terms(settings, rank).items():
        if job.get(name) != mine:
            raise PipelineError(
                f"{where!r} was begun with {name}={job.get(name)!r}, but this call has {name}={mine!r}",
                done="nothing was written",
                fix=f"continue with {name}={job.get(name)!r}; or write to a new location, or "
                "remove the existing data first",
            )
    rows = job.get("rows")
    if not isinstance(rows, int) or rows < 1 or not isinstance(job.get("state"), dict):
        raise PipelineError(f"the job in {where!r} is damaged", fix="write to a new location")
    return rows


def _check(loader: Loader, job: dict[str, Any], where: str) -> None:
    """Raise PipelineError if the job was begun with another pipeline or other data."""
    try:
        loader.check_state(job["state"])
    except ResumeError as error:
        raise PipelineError(
            f"{where!r} was begun by another pipeline, or with other data: {error.what}",
            done="nothing was written",
            fix="write to a new location, or remove the existing data first",
        ) from error


def _loader(pipeline: Pipeline, settings: Settings, rank: Rank, rows: int | None, form: Format) -> Loader:
    """Return a loader whose batches become pieces of files. If the pipeline has batches, they are joined later."""
    encode = None
    if rows is not None and not pipeline.node.batched:
        pipeline = pipeline.batch(rows, last="keep")
        encode = _encode(settings, form)
    node, progress = graph.replace(skipping_damaged(pipeline, settings.on_error), _keep_last_batch), None
    if settings.progress is not False:
        progress = progress_line("write", plain=bool(settings.progress))
    planner, _ = choose_plan(
        node, "auto", settings.executor, settings.workers, settings.on_error, exact=True, chosen=PlanOptions()
    )
    options = Options(
        executor=settings.executor, workers=settings.workers, rank=rank.rank, world=rank.world, subgroup=True,
        on_error=settings.on_error, as_blocks=True, encode=encode, observer=progress, planner=planner,
    )  # fmt: skip
    loader = Loader(node, options)
    if progress is not None:
        progress.position = loader.position
    return loader


def _keep_last_batch(node: Node) -> Node | None:
    """Make a batch operator keep its last rows on every rank, since writing does not need equal numbers of batches."""
    kept = node.operator.keeping_rest() if isinstance(node.operator, MakesBatches) else node.operator
    return None if kept is node.operator else replace(node, operator=kept)


def _encode(settings: Settings, form: Format) -> Encode:
    return Encode(form, settings.folders, settings.rows_per_file)


# ---- the run ---------------------------------------------------------------------------------------------------------


@dataclass
class WriteRun:
    """Writes the remaining rows.

    Args:
        settings: the settings of the job.
        log: the job's commits so far.
        loader: a loader that has not started.
        rows: number of rows per piece.
        form: the format of the files.
        batched: whether the pipeline has batches, which this process then joins to pieces.
    """

    settings: Settings
    log: Log
    loader: Loader
    rows: int
    form: Format
    batched: bool
    _schema: pa.Schema | None = None
    _parts: PartFiles = field(init=False)

    def all(self) -> None:
        """Write all remaining rows."""
        last = self.log.commits[-1] if self.log.commits else None
        if last is not None and last.end:
            return
        form, most = self.form, self.settings.rows_per_file
        self._parts = PartFiles(
            self.log.storage, form, lambda number: os.path.join(form.folder, self.log.name(form.suffix, number)),
            most if self.settings.folders else None, last.number if last is not None else 0,
        )  # fmt: skip
        begun = self.loader.epoch
        if last is not None:
            self.loader.load_state_dict(last.state)
            self.loader.set_epoch(last.state["epoch"])  # stay in this epoch, even if none of it remains
            kept = next((each for each in reversed(self.log.commits) if each.schema), None)
            self._schema = kept and _fields_of(kept)
        with contextlib.ExitStack() as stack:
            stack.callback(self._parts.drop)
            pulled = stack.enter_context(contextlib.closing(self._pieces()))
            for columns in pulled if self.loader.epoch == begun else ():  # otherwise only the last commit is missing
                self._add(columns)
                if self._reached_limit():
                    self._parts.end()
                if not self._parts.has_open_files:
                    self._commit()
            if not self._parts.has_open_files and not self.log.parts():
                self._add_empty_file()
            self._parts.end()
            self._commit(end=True)
        self.log.end()

    def _reached_limit(self) -> bool:
        most = self.settings.rows_per_file
        if self.settings.folders:
            return self._parts.bytes >= RUN_BYTES
        return most is not None and self._parts.rows + self.rows > most

    def _pieces(self) -> Generator[dict[str, Any]]:
        """Yield encoded pieces in order. After each, the loader's state is just after the piece's last row."""
        with contextlib.closing(iter(self.loader)) as blocks:  # type: ignore[type-var]
            if not self.batched:
                yield from (block.columns for block in blocks if block.columns)
                return
            encode, batches, count = _encode(self.settings, self.form), [], 0
            for block in blocks:
                batches.append(arrow_batch(block))
                same_schema(batches[0].schema, batches[-1].schema)
                count += batches[-1].num_rows
                if count >= self.rows:
                    yield encode.columns(pa.Table.from_batches(batches))
                    batches, count = [], 0
            if count:
                yield encode.columns(pa.Table.from_batches(batches))

    def _piece_adapter(self, columns: dict[str, Any]) -> Callable[[Any], Any]:
        """Return a function that adapts pieces to the file's schema. Start a new file if a column becomes nullable."""
        given = pa.ipc.read_schema(pa.py_buffer(columns["schema"]))
        before = self._schema
        if before is None:
            fields = given
        else:
            same_schema(nullable_schema(before), nullable_schema(given))
            fields = merge_nullability(given, before)
            if not fields.equals(before):
                self._parts.end()
        self._schema = fields
        if self.form.layouts is not None:
            self.form.layouts.fields = fields
        return (lambda piece: piece) if fields.equals(given) else (lambda piece: self.form.refitted(piece, fields))

    def _add(self, columns: dict[str, Any]) -> None:
        fitted = self._piece_adapter(columns)
        for folder, rows, piece in pieces(columns):
            self._parts.add(folder, rows, fitted(piece))

    def _add_empty_file(self) -> None:
        """On rank 0, write a file without rows to record the columns, if the format supports that."""
        types = self.loader.sample().types if self.log.rank == 0 else {}
        if types and self.settings.format in ("parquet", "arrow", "vortex", "lance") and not self.settings.folders:
            self._add(_encode(self.settings, self.form).columns(to_arrow_table([], types)))

    def _commit(self, end: bool = False) -> None:
        schema = b"" if self._schema is None else self._schema.serialize().to_pybytes()
        parts = tuple(self._parts.take_done())
        layout = {} if self.form.layouts is None else dict(self.form.layouts.layout)
        self.log.add(Commit(parts, self.loader.state_dict(), schema.hex(), self._parts.number, end, layout))
