"""Who watches a run is made only if the caller asks for it."""

import pytest

import cedar
from cedar.core import extensions
from cedar.engine.delivery.options import Observer
from cedar.pipeline.watching import observers, progress_line


def test_a_run_that_nobody_watches_has_no_observers(monkeypatch):
    monkeypatch.setattr(extensions, "_modules", {"watch": "no_such_module"})
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    assert observers(progress=False, trace=None, serve=None, on_metrics=None, site=None) is None
    with pytest.raises(cedar.PipelineError, match="not installed"):
        observers(progress=True, trace=None, serve=None, on_metrics=None, site=None)


def test_a_collector_in_the_environment_watches_too(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    assert observers(progress=False, trace=None, serve=None, on_metrics=None, site=None)


def test_without_the_extension_a_line_of_progress_shows_nothing(monkeypatch):
    monkeypatch.setattr(extensions, "_modules", {"watch": "no_such_module"})
    with progress_line("unique") as line:
        assert type(line) is Observer
