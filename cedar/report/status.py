"""What a run did so far, as plain values: for callbacks, for ``/status``, and as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cedar.engine.delivery.loader import Loader
from cedar.engine.metrics import Report

if TYPE_CHECKING:
    from prometheus_client.core import Metric


def status(loader: Loader) -> dict[str, Any]:
    """A report as JSON-able values; names end in their unit, seconds where there is none.

    Example:
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
        "worker_seconds": _added((line.label, line.seconds) for line in report.workers_time),
        "operator_seconds": report.operators,
        "bottleneck": report.bottleneck, "summary": report.summary, "plan": report.plan,
        "executor": report.executor, "workers": report.workers, "rank": report.rank, "world": report.world,
        "skipped_rows": report.skipped, "restarts": report.restarts, "requests": report.requests,
        "retries": report.retries, "notes": list(report.notes),
    }  # fmt: skip


def _added(pairs: Iterator[tuple[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for label, seconds in pairs:
        found[label] = found.get(label, 0.0) + seconds
    return found


@dataclass(frozen=True, eq=False)
class Collector:
    """Of a private registry of prometheus_client: asks when it is scraped, so that a run pays nothing otherwise."""

    report: Report

    def collect(self) -> Iterator[Metric]:
        """Counters and gauges, all with the rank."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        report, rank = self.report, str(self.report.rank)
        kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}

        def made(kind: str, name: str, what: str, values: dict[str, float], label: str = "") -> Metric:
            family = kinds[kind](f"cedar_{name}", what, labels=["rank", label] if label else ["rank"])
            for part, value in values.items():
                family.add_metric([rank, part] if label else [rank], value)
            metric: Metric = family
            return metric

        parts = _added((line.label, line.seconds) for line in report.workers_time)
        yield made("counter", "rows", "Rows handed over.", {"": report.rows})
        yield made("counter", "rows_read", "Rows decoded from the sources.", {"": report.rows_read})
        yield made("counter", "deliveries", "Batches, or rows, handed over.", {"": report.batches})
        yield made("counter", "run_seconds", "Wall time between the first and the last next().", {"": report.seconds})
        yield made("counter", "loader_seconds", "Wall time by what the loader did.", report.loader_time, "part")
        yield made("counter", "worker_seconds", "Time of all workers by what they did.", parts, "part")
        yield made("counter", "operator_seconds", "Time of all workers by operator.", report.operators, "operator")
        yield made("counter", "skipped_rows", "Rows dropped by operator.", dict(report.skipped), "operator")
        yield made("counter", "worker_restarts", "Workers that died.", {"": report.restarts})
        yield made("counter", "storage_requests", "Requests to storage other than local files.", {"": report.requests})
        yield made("counter", "storage_retries", "Requests made again after a fault.", {"": report.retries})
        yield made("gauge", "epoch", "The epoch at hand.", {"": report.epoch})
        yield made("gauge", "workers", "Workers that run tasks.", {"": report.workers})
        yield made("gauge", "stall_ratio", "Share of the wall time in which the trainer waited.", {"": report.stall})
        yield made("gauge", "bottleneck_info", "What limits the run.", {report.bottleneck: 1.0}, "name")
