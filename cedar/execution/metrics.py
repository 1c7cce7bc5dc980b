"""What a run counts, and the report made of it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from cedar.execution.chain import Step, Timing


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
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, steps: tuple[Step, ...], timing: Timing, source: int | None = None) -> None:
        """The seconds of one finished task."""
        with self._lock:
            self.tasks += 1
            for step, seconds in zip(steps, timing.seconds, strict=False):
                share = seconds / max(1, len(step.operators))
                for operator in step.operators:
                    self.seconds[operator] = self.seconds.get(operator, 0.0) + share
            if source is not None:
                self.seconds[source] = self.seconds.get(source, 0.0) + timing.read


@dataclass(frozen=True)
class Report:
    """What a loader did so far.

    ``stall`` is the share of the wall time between the first and the last ``next()`` in which the caller waited for
    data, 0 to 1. ``operators`` maps labels to seconds of work, summed over workers. ``rows_read`` counts rows decoded
    from the sources by this rank.
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
