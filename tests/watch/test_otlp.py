"""OpenTelemetry: a stand-in for a collector receives what a loader counted."""

import logging
import sys
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

import cedar
from cedar.cli.arguments import load_pipeline  # noqa: F401 - the command line imports without the extra
from cedar.watch.status import figures

ITEMS = [{"x": i} for i in range(100)]


@pytest.fixture
def collector(monkeypatch):
    """The last value of each metric that was received, by name and attributes."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    got = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            found = ExportMetricsServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
            for resource in found.resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        for point in (metric.sum or metric.gauge).data_points or metric.gauge.data_points:
                            labels = {a.key: a.value.string_value or a.value.int_value for a in point.attributes}
                            labels.pop("loader")
                            value = point.as_double or point.as_int
                            got[metric.name, tuple(sorted(labels.items()))] = (value, metric.unit, scope.scope.name)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    yield got
    server.shutdown()
    server.server_close()


def test_a_collector_receives_what_the_report_says(collector):
    with cedar.from_items(ITEMS).batch(10).loader(executor="threads", rank=0, world=2) as loader:
        list(loader)
    rank = (("rank", 0),)
    assert collector["cedar.rows", rank] == (50, "{row}", "cedar")
    assert collector["cedar.deliveries", rank][0] == 5
    assert collector["cedar.memory_bytes", rank][1] == "By"
    report, names = loader.report(), defaultdict(float)
    for (name, _), (value, _, _) in collector.items():
        names[name] += value
    for each in figures(report):
        if each.values and each.name != "memory_bytes":
            assert names[f"cedar.{each.name}"] == pytest.approx(sum(each.values.values()))


def test_a_program_that_has_a_provider_of_its_own_keeps_it(collector, caplog):
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    before = metrics._internal._METER_PROVIDER
    metrics._internal._METER_PROVIDER = MeterProvider([reader])
    try:
        pipeline = cedar.from_items(ITEMS).batch(10)
        with pipeline.loader(executor="inline") as loader:
            list(loader)
            found = reader.get_metrics_data().resource_metrics[0].scope_metrics
        values = {metric.name: metric.data.data_points[0].value for each in found for metric in each.metrics}
        assert values["cedar.rows"] == 100
        assert reader.get_metrics_data() is None  # the loader is closed
        with pipeline.loader(executor="inline") as first, pipeline.loader(executor="inline") as second:
            assert len([*first, *second]) == 20
            found = reader.get_metrics_data().resource_metrics[0].scope_metrics
        points = [p for each in found for m in each.metrics if m.name == "cedar.rows" for p in m.data.data_points]
        assert [point.value for point in points] == [100, 100]
        assert len({point.attributes["loader"] for point in points}) == 2
        assert "already" not in caplog.text  # made twice
        assert collector == {}
    finally:
        metrics._internal._METER_PROVIDER = before


def test_nothing_is_sent_where_it_is_switched_off(collector, monkeypatch):
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with cedar.from_items(ITEMS).batch(10).loader(executor="inline") as loader:
        list(loader)
    assert collector == {}


def test_without_the_extra_it_says_what_to_install(monkeypatch, caplog):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with (
        caplog.at_level(logging.WARNING, "cedar"),
        cedar.from_items(ITEMS).batch(10).loader(executor="inline") as loader,
    ):
        assert len(list(loader)) == 10
    assert "pip install 'cedar-data[otlp]'" in caplog.text


def test_a_collector_that_is_not_there_ends_no_run(monkeypatch):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with cedar.from_items(ITEMS).batch(10).loader(executor="inline") as loader:
        assert len(list(loader)) == 10
