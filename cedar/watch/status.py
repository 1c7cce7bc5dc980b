"""A run's metrics as plain values for callbacks and ``/status``, and as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cedar.engine.delivery.loader import Loader
from cedar.watch.report import Report

if TYPE_CHECKING:
    from prometheus_client.core import Metric


def status(loader: Loader) -> dict[str, Any]:
    """Return a loader's report as values that ``json.dumps`` accepts. Times are in seconds, sizes in bytes.

    Examples:
        >>> import cedar
        >>> loader = cedar.from_items([{"x": 1}]).loader(executor="inline")
        >>> rows = list(loader)
        >>> found = status(loader)
        >>> found["rows"], found["epoch"], found["step"]
        (1, 1, 0)
    """
    report, (step, steps) = loader.report(), loader.position()
    return {
        "rows": report.rows, "deliveries": report.batches, "rows_read": report.rows_read,
        "epoch": report.epoch, "step": step, "steps": steps,
        "seconds": report.seconds, "rows_per_second": report.rows_per_second, "stall": report.stall,
        "loader_seconds": report.loader_time,
        "worker_seconds": _sum_by_label((line.label, line.seconds) for line in report.workers_time),
        "operator_seconds": report.operators,
        "bottleneck": report.bottleneck, "summary": report.summary, "plan": report.plan,
        "executor": report.executor, "workers": report.workers, "rank": report.rank, "world": report.world,
        "skipped_rows": report.skipped, "restarts": report.restarts, "requests": report.requests,
        "rows_cached": report.rows_cached, "bytes_read": report.bytes_read, "queue_bytes": report.queue_bytes,
        "plan_changes": report.plan_changes, "memory_bytes": report.memory,
        "retries": report.retries, "notes": list(report.notes),
    }  # fmt: skip


def _sum_by_label(pairs: Iterator[tuple[str, float]]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for label, seconds in pairs:
        totals[label] = totals.get(label, 0.0) + seconds
    return totals


@dataclass(frozen=True)
class Figure:
    """A metric: its name without ``cedar_``, its UCUM unit, a description, and its values.

    Args:
        label: name of the label that distinguishes the values; "" for a single value, whose key is "".
        counts: whether it is a counter, which only grows; otherwise a gauge.
    """

    name: str
    unit: str
    description: str
    values: dict[str, float]
    label: str = ""
    counts: bool = True

    def describe(self) -> Iterator[tuple[str, float]]:
        """Yield labels and values. Labels that are not valid Unicode, such as some file names, are made valid."""
        for part, value in self.values.items():
            yield part.encode(errors="backslashreplace").decode(), value


def figures(report: Report) -> Iterator[Figure]:
    """Yield the metrics for Prometheus and OpenTelemetry.

    Examples:
        >>> import cedar
        >>> loader = cedar.from_items([{"x": 1}, {"x": 2}]).loader(executor="inline")
        >>> rows = list(loader)
        >>> {f.name: f.values for f in figures(loader.report())}["rows"]
        {'': 2}
    """
    r, parts = report, _sum_by_label((line.label, line.seconds) for line in report.workers_time)
    yield Figure("rows", "{row}", "Rows delivered.", {"": r.rows})
    yield Figure("rows_read", "{row}", "Rows decoded from the sources.", {"": r.rows_read})
    yield Figure("rows_cached", "{row}", "Rows that a cache gave.", {"": r.rows_cached})
    yield Figure(
        "read_bytes", "By", "Decoded bytes of the splits that were read, as metadata tell.", {"": r.bytes_read}
    )
    yield Figure("deliveries", "{delivery}", "Batches, or rows, delivered.", {"": r.batches})
    yield Figure("run_seconds", "s", "Wall time between the first and the last next().", {"": r.seconds})
    yield Figure("loader_seconds", "s", "Wall time by what the loader did.", r.loader_time, "part")
    yield Figure("worker_seconds", "s", "Time of all workers by what they did.", parts, "part")
    yield Figure("operator_seconds", "s", "Time of all workers by operator.", r.operators, "operator")
    yield Figure("skipped_rows", "{row}", "Rows dropped by operator.", dict(r.skipped), "operator")
    yield Figure("worker_restarts", "{worker}", "Workers that died.", {"": r.restarts})
    yield Figure("plan_changes", "{plan}", "Plans that took over while the run continued.", {"": r.plan_changes})
    yield Figure("storage_requests", "{request}", "Requests to storage other than local files.", {"": r.requests})
    yield Figure("storage_retries", "{request}", "Requests retried after a fault.", {"": r.retries})
    yield Figure("epoch", "{epoch}", "The current epoch.", {"": r.epoch}, counts=False)
    yield Figure("workers", "{worker}", "Workers that run tasks.", {"": r.workers}, counts=False)
    yield Figure("queue_bytes", "By", "Rows done, and not taken yet.", {"": r.queue_bytes}, counts=False)
    yield Figure("memory_bytes", "By", "Memory of the process and its workers.", {"": r.memory}, counts=False)
    yield Figure("stall_ratio", "1", "Share of the wall time in which the trainer waited.", {"": r.stall}, counts=False)
    yield Figure("bottleneck_info", "1", "What limits the run.", {r.bottleneck: 1.0}, "name", counts=False)


@dataclass(frozen=True, eq=False)
class Collector:
    """Collector for a private prometheus_client registry. It computes metrics only when scraped."""

    report: Report

    def collect(self) -> Iterator[Metric]:
        """Yield counters and gauges, labeled with the rank."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        rank = str(self.report.rank)
        for each in figures(self.report):
            kind = CounterMetricFamily if each.counts else GaugeMetricFamily
            family = kind(f"cedar_{each.name}", each.description, labels=["rank", *filter(None, [each.label])])
            for part, value in each.describe():
                family.add_metric([rank, part] if each.label else [rank], value)
            yield family
