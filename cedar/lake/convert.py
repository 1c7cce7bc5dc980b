"""Convert data to another format, after measuring on a sample how expensive each format is for a pipeline."""

from __future__ import annotations

import importlib.util
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cedar.core.errors import CedarError, SourceError, invalid_call
from cedar.core.process import find_rank
from cedar.datasets.base import Read
from cedar.datasets.filesource import FileSource
from cedar.datasets.storage import Storage
from cedar.lake.by_ending import READERS, by_ending
from cedar.lake.commits import begun_job
from cedar.lake.formats import FORMATS
from cedar.pipeline.core import Pipeline
from cedar.pipeline.typed import ExecutorLike
from cedar.plan import graph
from cedar.plan.data import Budget, Plan
from cedar.plan.graph import Node
from cedar.plan.steps.step import live_columns, read_from
from cedar.store.cache import SECONDS_PER_BYTE

if TYPE_CHECKING:
    from cedar.lake.writing import Written

_CANDIDATES = (("parquet", "pyarrow"), ("parquet", "fast"), ("parquet", "small"), ("arrow", "fast"), ("arrow", "small"),
          ("vortex", "fast"), ("lance", "fast"))  # fmt: skip
_WRITABLE = ("parquet", "arrow", "vortex", "lance")
_ROWS = 131_072  # minimum rows of the sample
_ROUNDS = 3  # number of rounds, of which the fastest counts


@dataclass(frozen=True)
class FormatCost:
    """The cost of a sample's rows in one format.

    Args:
        format, layout: as for ``write``. The layout of existing files is "as is".
        bytes: stored bytes per row.
        decoding: CPU seconds to decode a row's columns.
        pipeline: CPU seconds of the whole pipeline per row read; None without a pipeline.
        reading: seconds to read the row's bytes from the destination's storage.
    """

    format: str
    layout: str
    bytes: float
    decoding: float
    pipeline: float | None
    reading: float

    @property
    def seconds(self) -> float:
        """Return the total seconds per row."""
        return (self.decoding if self.pipeline is None else self.pipeline) + self.reading


@dataclass(frozen=True)
class Converted:
    """The measurements and the result of ``convert``.

    Args:
        worth: the cost of each measured format, best first; empty if a job was continued.
        columns: the columns that the pipeline reads; None means all.
        written: the result of ``write``; None if ``convert`` only measured.
    """

    worth: tuple[FormatCost, ...]
    columns: tuple[str, ...] | None
    written: Written | None = None

    def __str__(self) -> str:
        lines = []
        if self.worth:
            read = "all columns" if self.columns is None else f"{len(self.columns)} column(s)"
            lines = [f"{read} decoded, and whole pipeline, in M rows per CPU second; us a row with reading its bytes",
                     f"{'format':<9}{'layout':<9}{'B/row':>8}{'decoded':>9}{'pipeline':>10}{'us/row':>8}"]  # fmt: skip
        for each in self.worth:
            whole = "-" if each.pipeline is None else f"{1e-6 / each.pipeline:.2f}"
            lines.append(
                f"{each.format:<9}{each.layout:<9}{each.bytes:>8.1f}{1e-6 / each.decoding:>9.2f}{whole:>10}"
                f"{each.seconds * 1e6:>8.2f}"
            )
        return "\n".join([*lines, *([str(self.written)] if self.written is not None else [])])


def convert(
    paths: Any,
    out: str | os.PathLike[str] | None = None,
    *,
    format: str | None = None,
    layout: str | None = None,
    pipeline: Pipeline | None = None,
) -> Converted:
    """Write data to files of another format in the same row order, after measuring the cost of each format.

    cedar writes the first rows in every format whose library is installed, and decodes them in this process, with one
    thread if the library allows that. With ``pipeline``, cedar only measures the columns that the pipeline reads, and
    also runs the pipeline on each sample. Then it calls ``Pipeline.write``, whose job can be killed and continued. A
    continued job keeps its format.

    Args:
        paths: files in a format that ``cedar.read_*`` functions read, recognized by extension (such as .lance).
        out: the output folder; None only measures.
        format, layout: as for ``write``. The default minimizes the total time for CPU and reading.
        pipeline: the pipeline that will read the data. At present, it reads ``paths`` or files with the same columns.

    Raises:
        PipelineError: the format is unknown or cannot store the data, or the pipeline reads other data.
        SourceError: a file cannot be read, or written rows are missing.

    Examples:
        >>> import cedar, pyarrow as pa, pyarrow.parquet as pq
        >>> pq.write_table(pa.table({"x": range(1000), "y": range(1000)}), "in.parquet")
        >>> made = cedar.convert("in.parquet", "out", format="arrow")
        >>> made.written.rows, cedar.read_arrow("out").count()
        (1000, 1000)
    """
    name, data = by_ending(paths)
    place = "disk" if out is None or Storage.at(out).local else "url"
    begun = None if out is None else begun_job(out)
    worth: tuple[FormatCost, ...] = ()
    columns = None if pipeline is None else _columns_read(pipeline, data)
    if begun is None:
        worth = tuple(sorted(_measure(name, data, pipeline, columns, place), key=lambda each: each.seconds))
    if out is None:
        return Converted(worth, columns)
    if begun is not None:
        best = format or begun["format"], layout or begun["layout"]
    else:
        choices = [(w.format, w.layout) for w in worth if w.format in _WRITABLE and w.layout != "as is"]
        choices = [(f, w) for f, w in choices if format in (None, f) and layout in (None, w)]
        best = choices[0] if choices else (format or "parquet", layout or "fast")
    written = data.write(out, format=best[0], layout=best[1])  # type: ignore[arg-type]
    _check(data, _count_stored(best[0], out, written), written)
    return Converted(worth, columns, written)


def _count_stored(form: str, out: str | os.PathLike[str], written: Written) -> int:
    """Return the number of rows that can be read back."""
    joined = FORMATS[form].joined  # the files of all ranks become one data set
    if form not in READERS or not written.files or (joined and _has_other_ranks()):
        return written.rows
    return READERS[form][0](out if joined else written.files).count()


def _check(data: Pipeline, stored: int, written: Written) -> None:
    """Raise SourceError if the numbers of stored, written and expected rows differ."""
    expected = _known_rows(data)
    if stored != written.rows or (expected is not None and written.rows != expected and not _has_other_ranks()):
        raise SourceError(
            f"{written.url}: {stored:,} rows can be read, {written.rows:,} were written, {expected or 0:,} expected",
            fix="remove the output, and convert again",
        )


def _has_other_ranks() -> bool:
    return find_rank(None, None, False, None).world > 1


def _known_rows(data: Pipeline) -> int | None:
    splits = data.node.operator.source.splits()  # type: ignore[attr-defined]
    rows = [split.rows for split in splits]
    return None if None in rows else sum(rows)


# ---- the data and its columns ----------------------------------------------------------------------------------------


def _source_of(pipeline: Pipeline, data: Pipeline) -> Node:
    """Return the pipeline's node that reads the data."""
    every = graph.sources(pipeline.node)
    same = [node for node in every if read_from(node) == read_from(data.node)]
    readers = same or every
    if len(readers) != 1:
        raise invalid_call(
            f"convert: the pipeline has {len(readers)} sources, and it is unclear which of them reads this data",
            fix="give the same paths as in the pipeline",
        )
    return readers[0]


def _columns_read(pipeline: Pipeline, data: Pipeline) -> tuple[str, ...] | None:
    """Return the columns of the data that a pipeline needs; None means all."""
    node = _source_of(pipeline, data)
    needed = live_columns(pipeline.node)[id(node)]
    known = data.schema
    if needed is None:
        return None
    if missing := sorted(set(needed) - set(known)):
        raise invalid_call(f"convert: the pipeline reads {', '.join(missing[:5])}, which the data does not have")
    return tuple(name for name in known if name in needed)


# ---- measurements ----------------------------------------------------------------------------------------------------


def _measure(
    name: str, data: Pipeline, pipeline: Pipeline | None, columns: Sequence[str] | None, place: str
) -> Iterator[FormatCost]:
    source = data.node.operator.source  # type: ignore[attr-defined]
    first_splits, rows = _first_splits(source)
    per_byte = SECONDS_PER_BYTE[place] * _share_of_bytes(data, columns)

    def worth(form: str, layout: str, source: Any, rows: int, size: float) -> FormatCost:
        whole = None if pipeline is None else _pipeline_seconds(pipeline, data, source) / max(rows, 1)
        decoding = _decoding_seconds(source, columns) / max(rows, 1)
        return FormatCost(form, layout, size, decoding, whole, size * per_byte)

    if rows is not None and rows:
        splits = first_splits.splits()
        size = sum(split.bytes or 0 for split in splits)
        stored = sum(file.size or 0 for file in source.listing) if isinstance(source, FileSource) else 0
        total = sum(split.rows or 0 for split in source.splits())
        yield worth(name, "as is", first_splits, rows, stored / total if stored else size / rows)
    sample = Pipeline(Node(Read(first_splits), ())) if rows else data.take(_ROWS)
    with tempfile.TemporaryDirectory(prefix="cedar-convert-") as folder:
        for form, layout in _CANDIDATES:
            if form in ("vortex", "lance") and importlib.util.find_spec(form) is None:
                continue
            try:
                read, count, size = _sample(sample, form, layout, f"{folder}/{form}-{layout}")
                yield worth(form, layout or "-", read, count, size / max(count, 1))
            except CedarError:
                continue  # the format cannot store some column; ``write`` reports that if the user chose this format


def _share_of_bytes(data: Pipeline, columns: Sequence[str] | None) -> float:
    """Return the share of a row's bytes, 0 to 1, that these columns take."""
    table = data.take(1024).to_arrow()
    return 1.0 if columns is None or not table.nbytes else float(table.select(columns).nbytes / table.nbytes)


def _first_splits(source: Any) -> tuple[Any, int | None]:
    """Return the source limited to its first splits, and their number of rows; None if that number is unknown."""
    splits, count, rows = source.splits(), 0, 0
    for split in splits:
        if split.rows is None:
            return source, None
        count, rows = count + 1, rows + split.rows
        if rows >= _ROWS:
            break
    kind = type(source)
    first_splits = replace(source)
    object.__setattr__(
        first_splits, "__class__", type(kind.__name__, (kind,), {"splits": lambda self: kind.splits(self)[:count]})
    )
    return first_splits, rows


def _sample(sample: Pipeline, form: str, layout: str, path: str) -> tuple[Any, int, int]:
    """Write the sample and return a source that reads it, its number of rows, and its bytes."""
    written = sample.write(path, format=form, layout=layout, rank=0, world=1, progress=False)  # type: ignore[arg-type]
    pipeline = READERS[form][0](path)
    return pipeline.node.operator.source, written.rows, written.bytes  # type: ignore[attr-defined]


def _decoding_seconds(source: Any, columns: Sequence[str] | None) -> float:
    """Return the CPU seconds to decode these columns of all rows."""
    narrow = source.select(columns) if columns is not None and source.selects else source

    def decode() -> None:
        for split in narrow.splits():
            for _ in narrow.read(split):
                pass

    return _min_seconds(decode)


def _pipeline_seconds(pipeline: Pipeline, data: Pipeline, source: Any) -> float:
    """Return the CPU seconds of the pipeline when it reads another source."""
    node = _source_of(pipeline, data)
    index = next(i for i, each in enumerate(graph.walk(pipeline.node)) if each is node)
    number = iter(range(index + 1))

    def other(each: Node) -> Node | None:
        return Node(Read(source), (), each.site) if next(number, None) == index else None

    whole = Pipeline(graph.replace(pipeline.node, other))
    with whole.loader(executor="inline", rank=0, world=1, subgroup=True) as loader:

        def run() -> None:
            for _ in loader:
                pass

        run()  # the first run compiles kernels
        return _min_seconds(run)


def _min_seconds(call: Callable[[], None]) -> float:
    best = float("inf")
    for _ in range(_ROUNDS):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return max(best, 1e-9)


def optimize_layout(
    pipeline: Pipeline, budget: Budget, *, executor: ExecutorLike = "auto", workers: int | None = None
) -> Plan:
    """Read all files once, and store their rows in an optimized layout in the folder that the budget names.

    Loaders with the same budget or with the returned plan read this layout, also in other processes. Splits that are
    already stored are not rebuilt.

    Args:
        pipeline: a pipeline of finite length.
        budget: ``cedar.Budget(layout=...)``.
        executor, workers: as for ``loader``.

    Returns:
        A plan that reads the new layout: ``p.loader(plan=plan)``.

    Raises:
        PipelineError: the budget names no folder, the pipeline has no end, or it reads no files.

    Examples:
        >>> import cedar
        >>> written = cedar.from_items([{"x": i} for i in range(6)]).write("rows")
        >>> p = cedar.read_parquet("rows").map(float, "x").shuffle().batch(2)
        >>> plan = cedar.optimize_layout(p, cedar.Budget(layout="laid_out"))
        >>> sum(len(batch["x"]) for batch in p.loader(plan=plan))
        6
    """
    if budget.layout is None:
        raise invalid_call("optimize_layout: the budget names no folder", fix='cedar.Budget(layout="a folder")')
    with pipeline.loader(budget=budget, executor=executor, workers=workers, rank=0, world=1, subgroup=True) as loader:
        if loader.units() == math.inf:
            raise invalid_call("optimize_layout of a pipeline without end", fix="leave repeat() out")
        if not any(d.applied and d.rule == "layout_place" for d in loader.plan.decisions):
            why = next((f": {d.why}" for d in loader.plan.decisions if d.rule == "layout_place"), "")
            raise invalid_call(
                f"optimize_layout: there is nothing to lay out{why}",
                fix="it needs a pipeline that reads files split by split and has no cache()",
            )
        loader._epochs.job.store.place(os.fspath(budget.layout))  # raises if the folder belongs to another user
        for _ in loader:
            pass
        dropped = [d.why for d in loader.plan.decisions if d.rule == "plan" and not d.applied]
        if problems := [*dropped, *loader._epochs.job.store.notes]:
            raise invalid_call(
                f"optimize_layout: the layout in {str(budget.layout)!r} is incomplete: {problems[0]}",
                fix="check the folder and Budget(cache=), and call it again: existing splits are kept",
            )
        return loader.plan
