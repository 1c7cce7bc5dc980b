"""Looks at a pipeline: the first rows, a flow chart, a picture."""

from __future__ import annotations

from decimal import Decimal

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import col
from cedar.engine.delivery.options import Observer
from cedar.pipeline.look import observers, progress_line
from tests.watch.toy_tables import table


def test_head_is_a_frame_of_the_first_rows(tmp_path):
    path = str(tmp_path / "a.parquet")
    pq.write_table(table(), path)
    p = cedar.read_parquet(path).filter(col("f") > 5)
    rows = p.take(7).to_arrow()
    assert p.head(7).equals(pl.DataFrame(pl.from_arrow(rows)), null_equal=True)
    assert p.batch(4).head(7).equals(p.head(7))
    assert p.repeat().head(2).height == 2
    assert p.head(0).height == 0
    assert p.head(0).columns == p.filter(col("f") > 1e9).head(3).columns == p.columns
    with pytest.raises(cedar.PipelineError):
        p.head(-1)


def test_a_run_that_nobody_watches_has_no_observers(monkeypatch):
    monkeypatch.setattr("cedar.core.packages._extensions", {"watch": "no_such_module"})
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    assert observers(progress=False, trace=None, serve=None, on_metrics=None, site=None) is None
    with pytest.raises(cedar.PipelineError, match="not installed"):
        observers(progress=True, trace=None, serve=None, on_metrics=None, site=None)


def test_a_collector_in_the_environment_watches_too(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    assert observers(progress=False, trace=None, serve=None, on_metrics=None, site=None)


def test_without_the_extension_a_line_of_progress_shows_nothing(monkeypatch):
    monkeypatch.setattr("cedar.core.packages._extensions", {"watch": "no_such_module"})
    with progress_line("unique") as line:
        assert type(line) is Observer


def test_head_and_to_polars_show_what_rows_hold_or_name_the_column():
    lists = pa.array([[1, 2], None, [3, 4], [5, 6], None], pa.list_(pa.int64(), 2))
    p = cedar.from_arrow(pa.table({"x": lists})).skip(1)
    assert p.head(3)["x"].to_list() == [None, [3, 4], [5, 6]]
    assert p.to_polars()["x"].to_list() == [None, [3, 4], [5, 6], None]
    wide = cedar.from_arrow(pa.table({"d": pa.array([Decimal(1)], pa.decimal256(50, 2))}))
    for look in (wide.head, wide.to_polars, wide.describe):
        with pytest.raises(cedar.PipelineError, match=r"column 'd' of decimal256\(50, 2\): polars has no such type"):
            look()
