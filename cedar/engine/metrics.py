"""What a run counts, and the report made of it."""

from __future__ import annotations

import os
import statistics
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from cedar.control.timeline import Line, Timeline
from cedar.core.asking import Use
from cedar.core.memory import resident
from cedar.core.observation import Observation
from cedar.core.printable import escape, printable
from cedar.core.quota import cores
from cedar.engine.memory import Bound
from cedar.executors.recovery.deaths import Deaths
from cedar.profile import Machine, OperatorProfile, Profile, Subject
from cedar.tasks.chain import Timing

_RECENT = 32  # calls of an operator that its figures come from: they follow a run whose rows change
_DEATHS = 20  # lines of a report, one for a worker that died
_FEW = 2  # calls of which the first may have loaded something: what was known before still counts


class CallTimes:
    """The calls of one operator: the first by itself, the recent ones, and how many there were.

    Args:
        former: figures that hold until there are calls enough.
    """

    def __init__(self, former: OperatorProfile | None = None) -> None:
        self.former = former
        self.first: Observation | None = None
        self.recent: deque[Observation] = deque(maxlen=_RECENT)
        self.calls = self.rows_in = self.rows_out = 0

    @property
    def wall(self) -> float:
        """Seconds of all calls, about."""
        seen = [*([self.first] if self.first else []), *self.recent]
        rows = sum(o.rows_in for o in seen)
        return sum(o.wall for o in seen) * self.rows_in / rows if rows else 0.0

    def add(self, observation: Observation) -> None:
        """One more call; one on no rows tells nothing."""
        if not observation.rows_in:
            return
        if self.first is None:
            self.first = observation
        else:
            self.recent.append(observation)
        self.calls += 1
        self.rows_in += observation.rows_in
        self.rows_out += observation.rows_out

    def figures(self, label: str) -> OperatorProfile:
        """Medians of the recent calls; rows and what is kept of them over all calls."""
        if self.former is not None and self.calls <= _FEW:
            return self.former
        figures = OperatorProfile.of(label, [*([self.first] if self.first else []), *self.recent])
        keep = self.rows_out / self.rows_in if self.rows_in else 1.0
        return replace(figures, calls=self.calls, rows=self.rows_in, keep=keep)


class SkippedFile(NamedTuple):
    """What was skipped of a damaged file: why, and how many rows; None where nobody knows."""

    error: str
    rows: int | None

    def __str__(self) -> str:
        return f"{'an unknown number of' if self.rows is None else f'{self.rows:,}'} row(s): {self.error}"


@dataclass
class Metrics:
    """Live counters of one loader."""

    time: Timeline = field(default_factory=Timeline)
    tasks: int = 0
    carried: int = 0  # batches of an epoch before, which opened the next
    left_out: Counter[str] = field(default_factory=Counter)  # by unit: no rank was given them, as they fill no step
    rows_read: int = 0
    bytes_read: int = 0  # decoded, as metadata tell
    rows_kept: int = 0  # of splits that a cache gave
    rows_cached: int = 0  # that one was given
    rows: int = 0
    batches: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    skipped_files: dict[str, SkippedFile] = field(default_factory=dict)  # by URL
    labels: dict[int, str] = field(default_factory=dict)  # operator ordinal to label
    words: Callable[[], Mapping[int, str]] | None = None  # the same as people wrote them, looked up once
    seen: dict[int, CallTimes] = field(default_factory=dict, repr=False)  # by ordinal; from tasks asked for details
    storage: Use = field(default_factory=Use)
    fell_back: int = 0  # blocks that were run again in the order as written
    audited: int = 0  # pieces of what is delivered
    differences: list[str] = field(default_factory=list)  # that audits found
    deaths: Deaths = field(default_factory=Deaths)  # of workers
    results: dict[str, int] = field(default_factory=dict, repr=False)  # bytes of a stage's last one, by its label
    groups: dict[tuple[str, ...], tuple[int, int]] = field(default_factory=dict)  # rows handed over, and held, of each
    history: list[tuple[float, int, float, int]] = field(default_factory=list)  # see ``Report``
    bound: Bound | None = None  # of the memory, where the plan has one
    queued: Callable[[], int] = int  # bytes of results that nobody has taken; of a run that is watched
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def grouped(self, names: tuple[str, ...], rows: int, stored: int) -> None:
        """A batch of a group of columns is handed over."""
        before = self.groups.get(names, (0, 0))
        self.groups[names] = before[0] + rows, before[1] + stored

    @property
    def factors(self) -> dict[tuple[str, ...], float]:
        """Rows per row held, of each group."""
        return {names: rows / max(stored, 1) for names, (rows, stored) in list(self.groups.items())}

    @property
    def weights(self) -> dict[int, float]:
        """What each operator took where they were measured one by one."""
        return {i: seen.wall for i, seen in self.seen.items()}

    @property
    def told(self) -> Mapping[int, str]:
        """The labels of operators, for people."""
        return self.labels if self.words is None else self.words()

    @property
    def bottleneck(self) -> tuple[str, str]:
        """What limits the run, and why."""
        filling = self.rows_cached > self.rows_kept
        with self._lock:
            return self.time.bottleneck(self.told, cores(), filling)

    def __str__(self) -> str:
        """How fast the run is, and what limits it."""
        name, why = self.bottleneck
        rate, limit = f"{self.time.rate(self.rows):,.0f} rows/s", f"{name} ({why})" if why else name
        return f"{rate}; waited for data {self.time.stall:.0%} of the time; bottleneck: {limit}"

    @property
    def rows_entered(self) -> int:
        """Rows that were read, or given by a cache."""
        return self.rows_read + self.rows_kept

    def add(self, timing: Timing, source: int | None = None, extra: bool = False) -> None:
        """What one finished task did, which read the source where one is given; ``extra`` as of ``timed``."""
        with self._lock:
            self.time.add(timing, extra)
            self.tasks += 1
            for operator, observation in timing.seen.items():
                self.observe(operator, observation)
            self.fell_back += timing.fell_back
            if source is not None:
                self.storage.add(timing.storage)
                self.rows_read += timing.rows_read
                self.rows_kept += timing.rows_kept
                self.rows_cached += timing.rows_cached
                if timing.read_columns:
                    self.observe(source, _reading(timing, source))

    def timed(self, timing: Timing, extra: bool) -> None:
        """Count the time of a task; ``extra``: where it ran in this process, no worker did."""
        with self._lock:
            self.time.add(timing, extra)

    def observe(self, operator: int, observation: Observation) -> None:
        """One call of an operator."""
        self.seen.setdefault(operator, CallTimes()).add(observation)

    def renew(self) -> None:
        """What was measured so far counts until there is something newer: a plan, or a function's cost, changed."""
        with self._lock:
            self.seen = {i: CallTimes(seen.figures(self.labels.get(i, ""))) for i, seen in self.seen.items()}

    def profile(
        self,
        subject: Subject,
        machine: Machine,
        *,
        workers: int = 1,
        executor: str = "threads",
        seconds: float | None = None,
    ) -> Profile:
        """The figures of the tasks that were asked for details; operators that never ran are left out.

        ``seconds`` is the wall time that they come from, that of the run by default.
        """
        with self._lock:
            ran = [(i, seen) for i, seen in sorted(self.seen.items()) if seen.calls or seen.former]
            return Profile(
                pipeline=subject.digest,
                operators={i: seen.figures(subject.labels[i]) for i, seen in ran},
                machine=machine,
                rows=self.rows_read,
                seconds=self.time.elapsed if seconds is None else seconds,
                workers=workers,
                executor=executor,
            )


def _reading(timing: Timing, source: int) -> Observation:
    """What a task's reading took; bytes as if the filters of a scan had left all rows."""
    rows = timing.rows_read
    scale = rows / max(timing.rows_left, 1)
    columns = {name: int(size * scale) for name, size in timing.read_columns.items()}
    size = sum(columns.values())
    read = [(wall, cpu) for part, wall, cpu in timing.parts if part == ("read", (source,))]
    return Observation(rows, rows, size, size, sum(w for w, _ in read), sum(c for _, c in read), columns)


class View(Protocol):
    """How a report is shown as HTML."""

    def part(self, report: Report) -> str:
        """For a notebook."""

    def page(self, report: Report) -> str:
        """A page of its own, with what was recorded."""


@dataclass(frozen=True)
class Report:
    """What a loader did so far.

    ``seconds`` is the wall time between the first and the last ``next()``, ``stall`` the share of it in which the
    caller waited for data, 0 to 1, and ``rows_per_second`` what was handed over. ``operators`` maps labels to seconds
    of work, summed over workers. ``workers_time`` is all that workers did, with what was measured of operators that run
    as one: its lines sum to ``seconds`` times the workers, as many as there were at each moment; what the loader's
    process does beside worker processes comes on top. ``loader_time`` is what the caller's thread did, which sums
    to ``seconds``. ``bottleneck`` is what takes most, and ``summary`` says why, as ``explain()`` does.
    ``rows_read`` counts rows decoded from the sources by this rank. ``plan`` says how the last plan was found,
    ``notes`` what became of others, of audits and of the cache. ``restarts`` counts workers that died, ``deaths`` says
    of each how, at which operator and row, and ``recovery`` is the median of the seconds from the loss of a task until
    it was done.
    ``requests`` counts what was asked of storage other than local files, ``retries`` what was asked again after a
    fault, ``retry_wait`` the seconds waited before that: listings and footers of the sources, whenever they were read,
    and all that this loader's tasks asked, in any process.
    ``numeric`` is the environment that functions run in; empty where there are none.
    ``skipped_files`` says of each damaged file what was skipped.
    ``dedup`` maps the groups of columns that ``dedup()`` made to rows per row held, in the batches handed over.
    ``bytes_read`` are the decoded bytes of the splits that were read, as far as metadata tell; ``queue_bytes`` those of
    rows that workers have done and the loader has not taken yet, of a run that is watched.
    ``memory`` is the bytes that this process and its workers hold, pages of files such as libraries counted once;
    ``memory_peak`` the most that was seen, of a run with ``Budget(memory=)``, and ``memory_parts`` who held how much
    then, where it was beyond the budget. ``rows_cached`` counts rows that a cache gave, and
    ``plan_changes`` the plans that took over while the run went on.
    ``graph`` has the label of each operator and the places of its inputs in this list. ``history`` has, of a run that
    is watched, (seconds, rows, seconds waited, bytes held) now and then.
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
    graph: tuple[tuple[str, tuple[int, ...]], ...] = field(default=(), repr=False)
    history: tuple[tuple[float, int, float, int], ...] = field(default=(), repr=False)
    view: View | None = field(default=None, repr=False, compare=False)

    def html(self, path: str | os.PathLike[str]) -> None:
        """Write all of it as one page, which needs no network.

        Examples:
            >>> import cedar, pathlib
            >>> with cedar.from_items([{"x": 1}]).loader() as loader:
            ...     rows = list(loader)
            >>> loader.report().html("report.html")
            >>> "from_items" in pathlib.Path("report.html").read_text()
            True
        """
        with open(path, "w", encoding="utf-8", errors="xmlcharrefreplace") as file:
            file.write(self._repr_html_() if self.view is None else self.view.page(self))

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
            again = f"{self.retries:,} of them made again after {self.retry_wait:.2f} s of waiting"
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
        return f"<pre>{escape(str(self))}</pre>" if self.view is None else self.view.part(self)


def make_report(metrics: Metrics, metadata: Use, inline: bool, notes: tuple[str, ...], **facts: Any) -> Report:
    """The counters as a report; ``metadata`` are the requests that no task made."""
    time, labels, bound = metrics.time, metrics.told, metrics.bound
    with metrics._lock:  # anybody may ask, at any time
        lines = time.workers(labels, metrics.weights, inline)
        operators = time.operators(lines, labels)
    return Report(
        rows=metrics.rows,
        batches=metrics.batches,
        seconds=time.elapsed,
        rows_per_second=time.rate(metrics.rows),
        stall=time.stall,
        operators=operators,
        workers_time=tuple(lines),
        loader_time=time.loader(),
        bottleneck=metrics.bottleneck[0],
        summary=str(metrics),
        skipped=dict(metrics.skipped),
        skipped_files=dict(metrics.skipped_files),
        dedup={"+".join(names): factor for names, factor in metrics.factors.items()},
        restarts=metrics.deaths.count,
        recovery=statistics.median(list(metrics.deaths.recoveries)) if metrics.deaths.recoveries else None,
        rows_read=metrics.rows_read,
        history=tuple(metrics.history),
        notes=notes if bound is None else (*notes, bound.note()),
        memory=resident(),
        memory_peak=0 if bound is None else bound.peak,
        memory_parts={} if bound is None else dict(bound.parts),
        rows_cached=metrics.rows_kept,
        bytes_read=metrics.bytes_read,
        queue_bytes=metrics.queued(),
        requests=metrics.storage.requests + metadata.requests,
        retries=metrics.storage.retries + metadata.retries,
        retry_wait=metrics.storage.waited + metadata.waited,
        **facts,
    )
