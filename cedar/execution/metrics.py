"""What a run counts, and the report made of it."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from cedar.execution.chain import Step, Timing
from cedar.profile import Machine, Observation, OperatorProfile, Profile, Subject

_RECENT = 64  # calls of an operator that its figures come from: they follow a run whose rows change


class Seen:
    """The calls of one operator: the first by itself, the recent ones, and how many there were."""

    def __init__(self) -> None:
        self.first: Observation | None = None
        self.recent: deque[Observation] = deque(maxlen=_RECENT)
        self.calls = self.rows_in = self.rows_out = 0

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
        figures = OperatorProfile.of(label, [*([self.first] if self.first else []), *self.recent])
        keep = self.rows_out / self.rows_in if self.rows_in else 1.0
        return replace(figures, calls=self.calls, rows=self.rows_in, keep=keep)


@dataclass
class Metrics:
    """Live counters of one loader."""

    seconds: dict[int, float] = field(default_factory=dict)  # operator ordinal to seconds in its kernel
    tasks: int = 0
    rows_read: int = 0
    rows: int = 0
    batches: int = 0
    waited: float = 0.0
    elapsed: float = 0.0
    skipped: dict[str, int] = field(default_factory=dict)
    labels: dict[int, str] = field(default_factory=dict)  # operator ordinal to label
    seen: dict[int, Seen] = field(default_factory=dict, repr=False)  # by ordinal; from tasks asked for details
    fell_back: int = 0  # blocks that were run again in the order as written
    audited: int = 0
    differences: list[str] = field(default_factory=list)  # that audits found
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, steps: tuple[Step, ...], timing: Timing, source: int | None = None) -> None:
        """The seconds of one finished task."""
        with self._lock:
            self.tasks += 1
            for step, seconds in zip(steps, timing.seconds, strict=False):
                share = seconds / max(1, len(step.operators))
                for operator in step.operators:
                    self.seconds[operator] = self.seconds.get(operator, 0.0) + share
            for operator, observation in timing.seen.items():
                self.observe(operator, observation)
            self.fell_back += timing.fell_back
            self.audited += timing.audited
            if timing.difference:
                self.differences.append(timing.difference)
            if source is not None:
                self.seconds[source] = self.seconds.get(source, 0.0) + timing.read
                self.rows_read += timing.rows_read
                if timing.read_columns:
                    self.observe(source, _reading(timing))

    def observe(self, operator: int, observation: Observation) -> None:
        """One call of an operator."""
        self.seen.setdefault(operator, Seen()).add(observation)

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
            ran = [(i, seen) for i, seen in sorted(self.seen.items()) if seen.calls]
            return Profile(
                pipeline=subject.digest,
                operators={i: seen.figures(subject.labels[i]) for i, seen in ran},
                machine=machine,
                rows=self.rows_read,
                seconds=self.elapsed if seconds is None else seconds,
                workers=workers,
                executor=executor,
            )


def _reading(timing: Timing) -> Observation:
    """What a task's reading took; bytes as if the filters of a scan had left all rows."""
    rows = timing.rows_read
    scale = rows / max(timing.rows_left, 1)
    columns = {name: int(size * scale) for name, size in timing.read_columns.items()}
    size = sum(columns.values())
    return Observation(rows, rows, size, size, timing.read, timing.read_cpu, columns)


@dataclass(frozen=True)
class Report:
    """What a loader did so far.

    ``stall`` is the share of the wall time between the first and the last ``next()`` in which the caller waited for
    data, 0 to 1. ``operators`` maps labels to seconds of work, summed over workers. ``rows_read`` counts rows decoded
    from the sources by this rank. ``plan`` says how the last plan was found, ``notes`` what became of others, of audits
    and of the cache.
    """

    rows: int
    batches: int
    seconds: float
    rows_per_second: float
    stall: float
    operators: dict[str, float]
    bottleneck: str
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

    def __str__(self) -> str:
        lines = [
            (
                f"{self.rows:,} rows in {self.batches:,} deliveries, {self.seconds:.2f} s: "
                f"{self.rows_per_second:,.0f} rows/s"
            ),
            f"waited for data {self.stall:.0%} of the time; bottleneck: {self.bottleneck}",
            (
                f"rank {self.rank} of {self.world} (from {self.rank_from}); "
                f"executor {self.executor}, {self.workers} worker(s)"
            ),
        ]
        total = sum(self.operators.values()) or 1.0
        lines += [f"  {s:8.3f} s {s / total:5.0%}  {label}" for label, s in self.operators.items()]
        if self.skipped:
            lines += [f"  skipped {count:,} row(s) in {label}" for label, count in self.skipped.items()]
        lines.append(f"plan: {self.plan}")
        lines += [f"note: {note}" for note in self.notes]
        lines.append(f"restarts: {self.restarts}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


def make_report(metrics: Metrics, **facts: Any) -> Report:
    """The counters as a report."""
    operators = {
        f"{metrics.labels.get(i, i)}": seconds for i, seconds in sorted(metrics.seconds.items(), key=lambda kv: -kv[1])
    }
    stall = min(1.0, metrics.waited / metrics.elapsed) if metrics.elapsed else 0.0
    busiest = next(iter(operators), "none measured")
    return Report(
        rows=metrics.rows,
        batches=metrics.batches,
        seconds=metrics.elapsed,
        rows_per_second=metrics.rows / metrics.elapsed if metrics.elapsed else 0.0,
        stall=stall,
        operators=operators,
        bottleneck=busiest if stall > 0.1 else "the consumer",
        skipped=dict(metrics.skipped),
        restarts=0,
        rows_read=metrics.rows_read,
        **facts,
    )
