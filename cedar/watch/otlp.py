"""Send metrics to an OpenTelemetry collector, if an environment variable names one."""

from __future__ import annotations

import itertools
import logging
import os
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from cedar.engine.delivery.options import Observer
from cedar.watch.status import figures

if TYPE_CHECKING:
    from cedar.engine.delivery.loader import Loader

_log = logging.getLogger("cedar")
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_NOT_INSTALLED = "%s is set, but nothing is sent: pip install 'cedar-data[otlp]'"


def collector_variable() -> str:
    """Return the variable that names a collector; "" if none is set or OpenTelemetry is disabled."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return ""
    return next((name for name in _ENDPOINTS if os.environ.get(name)), "")


_numbers = itertools.count()  # counter for numbering this process's loaders
_sending: weakref.WeakKeyDictionary[Any, Loaders] = weakref.WeakKeyDictionary()  # by meter provider of the program


class Loaders:
    """The loaders whose metrics one meter provider sends. They share instruments, one for each metric.

    Args:
        provider: the meter provider.
    """

    def __init__(self, provider: Any) -> None:
        self.known: dict[int, Any] = {}  # maps loader numbers to weak references
        self._created: set[str] = set()
        self._meter = provider.get_meter("cedar")

    def add(self, number: int, loader: Loader) -> None:
        """Start sending a loader's metrics."""
        self.known[number] = weakref.ref(loader)
        for each in figures(loader.report()):
            if each.name not in self._created:
                self._created.add(each.name)
                make = self._meter.create_observable_counter if each.counts else self._meter.create_observable_gauge
                make(f"cedar.{each.name}", [self._values(each.name)], unit=each.unit, description=each.description)

    def _values(self, name: str) -> Callable[[Any], Iterator[Any]]:
        from opentelemetry.metrics import Observation

        def values(_options: Any) -> Iterator[Any]:
            for number, reference in list(self.known.items()):
                loader = reference()
                if loader is None:
                    continue
                report = loader.report()
                own = {"rank": report.rank, "loader": number}
                for each in figures(report):
                    if each.name == name:
                        for part, value in each.describe():
                            yield Observation(value, own | ({each.label: part} if each.label else {}))

        return values


class Otlp(Observer):
    """Sends a loader's metrics through the program's meter provider, or creates a provider if the program has none.

    OpenTelemetry's variables configure the destination and interval: ``OTEL_EXPORTER_OTLP_ENDPOINT``, ``..._HEADERS``,
    ``OTEL_METRIC_EXPORT_INTERVAL`` (milliseconds), ``OTEL_RESOURCE_ATTRIBUTES``.
    """

    def __init__(self) -> None:
        self._own_provider: Any = None  # meter provider created here, if the program has none
        self._number = next(_numbers)
        self._loaders: Loaders | None = None

    def attach(self, loader: Loader) -> None:
        """Start sending a loader's metrics, if OpenTelemetry is installed."""
        try:
            from opentelemetry import metrics
            from opentelemetry.sdk.metrics import MeterProvider
        except ImportError:
            _log.warning(_NOT_INSTALLED, collector_variable())
            return
        program_provider = metrics.get_meter_provider()
        if isinstance(program_provider, MeterProvider):
            self._loaders = _sending.setdefault(program_provider, Loaders(program_provider))
        elif (own := _provider()) is not None:
            self._own_provider, self._loaders = own, Loaders(own)
        if self._loaders is not None:
            self._loaders.add(self._number, loader)

    def close(self) -> None:
        """Stop sending. If this object created the provider, the provider first sends the last metrics."""
        if self._own_provider is not None:
            provider, self._own_provider = self._own_provider, None
            provider.shutdown()
        if self._loaders is not None:
            self._loaders.known.pop(self._number, None)


def _provider() -> Any:
    """Return a meter provider that sends over HTTP, configured by OpenTelemetry's variables; None if not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    except ImportError:
        _log.warning(_NOT_INSTALLED, collector_variable())
        return None
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    return MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())], shutdown_on_exit=False)
