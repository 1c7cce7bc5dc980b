"""The report of a run: what a loader has done so far, as text or as an HTML page."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from cedar.control.timeline import Line
from cedar.core.printable import brief, printable
from cedar.core.process import resident
from cedar.datasets.base import Read
from cedar.datasets.filesource import requests_outside_tasks
from cedar.engine.delivery.epochs import Epochs
from cedar.engine.epoch import Job
from cedar.engine.metrics import Metrics, SkippedFile
from cedar.engine.notes import pictured
from cedar.plan.graph import sources

_DEATHS = 20  # max dead workers to list in a report, one per line


@dataclass(frozen=True)
class Report:
    """What a loader has done so far.

    ``seconds`` is the wall time between the first and the last ``next()``. ``stall`` is the share of this time during
    which the caller waited for data, 0 to 1. ``rows_per_second`` counts delivered rows. ``operators`` maps labels to
    seconds of work, summed over workers. ``workers_time`` lists how workers spent their time; fused operators get their
    measured shares. Its lines sum to the time of all workers, plus work in the loader's own process.
    ``loader_time`` lists how the caller's thread spent its time, and sums to ``seconds``.
    ``bottleneck`` is what takes the most time, and ``summary`` explains why, as ``explain()`` does.
    ``rows_read`` counts rows that this rank decoded from the sources. ``plan`` describes how the last plan was found;
    ``notes`` report on other plans, audits and the cache. ``restarts`` counts workers that died. ``deaths`` describes
    how each died, and at which operator and row. ``recovery`` is the median of the seconds from losing a task until
    the task was done.
    ``requests`` counts requests to storage other than local files, ``retries`` those repeated after a fault, and
    ``retry_wait`` the seconds waited before retries. They include requests for the sources' listings and footers, and
    requests of this loader's tasks in any process.
    ``numeric`` describes the environment that functions run in; empty without functions.
    ``skipped_files`` describes what was skipped of each damaged file.
    ``dedup`` maps each group of columns of ``dedup()`` to the number of delivered rows per stored row.
    ``bytes_read`` is the decoded size of the splits that were read, if file metadata include it. ``queue_bytes`` is the
    size of finished rows that the loader has not taken yet; only with an observer, such as ``progress=``.
    ``memory`` is the bytes that this process and its workers use; shared file pages, such as libraries, count once.
    ``memory_peak`` is the max memory during a run with ``Budget(memory=)``; ``memory_parts`` breaks it down if it was
    over budget. ``rows_cached`` counts rows read from a cache. ``plan_changes`` counts changes of plan during the run.
    ``epoch`` and ``step`` are the loader's position, as in its state: after the end of an epoch, step 0 of the next.
    ``graph`` has, for each operator, its label, the indices of its inputs in this list, and lines about its columns,
    rows and executor. ``history`` has (seconds, rows, seconds waited, memory) at intervals; only with an observer.
    """

    rows: int
    batches: int
    seconds: float
    rows_per_second: float
    stall: float
    operators: dict[str, float]
    workers_time: tuple[Line, ...]
    loader_time: dict[str, float]
    bottleneck: str
    summary: str
    skipped: dict[str, int]
    restarts: int
    rank: int
    world: int
    rank_from: str
    executor: str
    workers: int
    rows_read: int
    epoch: int
    plan: str = "as written"
    notes: tuple[str, ...] = ()
    dedup: dict[str, float] = field(default_factory=dict)
    deaths: tuple[str, ...] = ()
    recovery: float | None = None
    requests: int = 0
    retries: int = 0
    retry_wait: float = 0.0
    numeric: str = ""
    memory: int = field(default=0, compare=False)
    memory_peak: int = field(default=0, compare=False)
    memory_parts: Mapping[str, int] = field(default_factory=dict, compare=False)
    rows_cached: int = 0
    bytes_read: int = 0
    queue_bytes: int = field(default=0, compare=False)
    skipped_files: dict[str, SkippedFile] = field(default_factory=dict)
    plan_changes: int = 0
    step: int = 0
    graph: tuple[tuple[str, tuple[int, ...], tuple[str, ...]], ...] = field(default=(), repr=False)
    history: tuple[tuple[float, int, float, int], ...] = field(default=(), repr=False)
    metrics: Metrics | None = field(default=None, repr=False, compare=False)  # the recorded spans are here

    def html(self, path: str | os.PathLike[str]) -> None:
        """Write the report as one self-contained HTML page.

        Examples:
            >>> import cedar, pathlib
            >>> with cedar.from_items([{"x": 1}]).loader() as loader:
            ...     rows = list(loader)
            >>> loader.report().html("report.html")
            >>> "from_items" in pathlib.Path("report.html").read_text()
            True
        """
        from cedar.watch import page
        from cedar.watch.trace import TraceRecord

        with open(path, "w", encoding="utf-8", errors="xmlcharrefreplace") as file:
            file.write(page.page(self, [] if self.metrics is None else list(TraceRecord.of(self.metrics).spans())))

    __repr__ = brief

    def __str__(self) -> str:
        lines = [
            f"{self.rows:,} rows in {self.batches:,} deliveries, {self.seconds:.2f} s",
            self.summary,
            (
                f"rank {self.rank} of {self.world} (from {self.rank_from}); "
                f"executor {self.executor}, {self.workers} worker(s)"
            ),
        ]
        lines.append("loader: " + ", ".join(f"{part} {s:.3f} s" for part, s in self.loader_time.items()))
        total = sum(line.seconds for line in self.workers_time) or 1.0
        lines += [f"  {line.seconds:8.3f} s {line.seconds / total:5.0%}  {line}" for line in self.workers_time]
        lines += [f"  dedup {names}: each row held once for {factor:.3g}" for names, factor in self.dedup.items()]
        if self.skipped:
            lines += [f"  skipped {count:,} row(s) in {label}" for label, count in self.skipped.items()]
            lines += [f"  skipped of {url} {lost}" for url, lost in self.skipped_files.items()]
        if self.requests:
            again = f"{self.retries:,} of them retried after {self.retry_wait:.2f} s of waiting"
            lines.append(f"storage: {self.requests:,} requests, {again}")
        lines.append(f"plan: {self.plan}")
        lines += [f"functions run with {self.numeric}"] if self.numeric else []
        lines += [f"note: {note}" for note in self.notes]
        recovery = "" if self.recovery is None else f"; a lost task was done after {self.recovery:.2f} s (median)"
        lines.append(f"restarts: {self.restarts}{recovery}")
        lines += [f"  {death}" for death in self.deaths[:_DEATHS]]
        if len(self.deaths) > _DEATHS:
            lines.append(f"  and {len(self.deaths) - _DEATHS:,} more")
        return printable("\n".join(lines))

    def _repr_html_(self) -> str:
        from cedar.watch import page

        return page.view(self)


def make_report(epochs: Epochs) -> Report:
    """Report on a loader's run so far."""
    parts, job, position = epochs.parts, epochs.job, epochs.position
    metrics, binding, rank = job.metrics, job.binding, job.rank
    metadata = requests_outside_tasks(n.operator.source for n in sources(binding.root) if isinstance(n.operator, Read))
    executor = "none yet" if parts.run is None else parts.run.runner.name
    time, labels, bound = metrics.time, metrics.display_labels, metrics.bound
    with metrics._lock:  # any thread may call this at any time
        lines = time.workers(labels, metrics.weights, executor == "inline")
        operators = time.operators(lines, labels)
    return Report(
        rows=metrics.rows, batches=metrics.batches, seconds=time.elapsed, rows_per_second=time.rate(metrics.rows),
        stall=time.stall, operators=operators, workers_time=tuple(lines), loader_time=time.loader(),
        bottleneck=metrics.bottleneck[0], summary=str(metrics), skipped=dict(metrics.skipped),
        skipped_files=dict(metrics.skipped_files), restarts=metrics.deaths.count, metrics=metrics,
        dedup={"+".join(names): factor for names, factor in metrics.factors.items()},
        recovery=statistics.median(list(metrics.deaths.recoveries)) if metrics.deaths.recoveries else None,
        deaths=tuple(map(parts.account.describe, list(metrics.deaths.latest))),
        rows_read=metrics.rows_read, rows_cached=metrics.rows_kept, bytes_read=metrics.bytes_read,
        queue_bytes=metrics.queued(), history=tuple(metrics.history), notes=tuple(_notes(epochs)),
        memory=resident(), memory_peak=0 if bound is None else bound.peak,
        memory_parts={} if bound is None else dict(bound.parts),
        requests=metrics.storage.requests + metadata.requests, retries=metrics.storage.retries + metadata.retries,
        retry_wait=metrics.storage.waited + metadata.waited,
        rank=rank.rank, world=rank.world, rank_from=rank.origin, epoch=position.epoch, step=position.step,
        executor=executor, workers=0 if parts.run is None else parts.run.workers,
        plan=job.plans.current.method, plan_changes=len(job.plans.history),
        numeric="" if binding.numeric is None else str(binding.numeric),
        graph=_graph(job, None if parts.run is None else executor),
    )  # fmt: skip


def _notes(epochs: Epochs) -> Iterator[str]:
    job, metrics = epochs.job, epochs.job.metrics
    yield from job.binding.unsteady
    yield from job.plans.notes()
    yield from job.store.describe()
    yield from epochs.parts.account.left_behind()
    if metrics.carried:
        yield f"{metrics.carried} batch(es), left over when all ranks ended an epoch, opened the next"
    for unit, number in metrics.left_out.items():
        yield f"{number:,} {unit} left out at the end of an epoch: too few for a batch on every rank"
    if epochs.position.has_leftovers and job.sharing.together:
        yield "this rank had batches left when all ranks ended the epoch: they open the next"
    yield from epochs.file_changes
    if metrics.bound is not None:
        yield metrics.bound.note()


def _graph(job: Job, executor: str | None) -> tuple[tuple[str, tuple[int, ...], tuple[str, ...]], ...]:
    """Return ``Report.graph``; without the details of the sources before the first run, which would list storage."""
    binding, labels = job.binding, job.metrics.display_labels
    details: list[tuple[str, ...]] = [()] * len(binding.nodes)
    if executor is not None:
        physical = binding.lowered(job.plans.current.root, executor)
        details = pictured(binding.nodes, binding.splits, physical, executor)
    inputs = (tuple(binding.index[id(child)] for child in node.inputs) for node in binding.nodes)
    return tuple((labels[i], below, details[i]) for i, below in enumerate(inputs))
