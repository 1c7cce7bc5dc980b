"""Who watches a run: what each is told, and how often."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar.engine.metrics import Metrics
from cedar.watch import observers
from cedar.watch.observers import History
from tests.waiting import eventually
from tests.watch.toy_runs import add_one, numbers


def test_a_callback_gets_figures_when_an_iteration_ends_and_now_and_then(monkeypatch):
    monkeypatch.setattr(observers, "_UPDATE_SECONDS", 0.0)
    seen = []
    with numbers().loader(on_metrics=seen.append, executor="inline") as loader:
        list(loader)
        assert [(each["rows"], each["epoch"], each["step"]) for each in seen] == [(2000, 0, 40)]
        monkeypatch.setattr(observers, "_CALLBACK_SECONDS", 0.0)
        list(loader)
        list(loader)
    assert len(seen) > 40
    assert json.loads(json.dumps(seen[-1])) == seen[-1]
    with pytest.raises(cedar.PipelineError, match="on_metrics"):
        numbers().loader(on_metrics=3)
    with pytest.raises(cedar.PipelineError, match="trace=True: expected a path"):
        numbers().loader(trace=True)


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_bytes_are_those_of_files_read_and_of_rows_not_taken_yet(tmp_path, executor):
    pq.write_table(pa.table({"x": pa.array(range(20_000))}), tmp_path / "x.parquet", row_group_size=1000)
    pipeline = cedar.read_parquet(str(tmp_path / "x.parquet")).map(add_one, "x").batch(1000)
    with pipeline.loader(executor=executor, workers=2, on_metrics=lambda _: None, plan="off") as loader:
        batches = iter(loader)
        next(batches)
        assert eventually(lambda: loader.report().queue_bytes >= 8000)  # a batch of int64, at least
        assert len(list(batches)) == 19
        report = loader.report()
    assert 160_000 <= report.bytes_read <= 200_000  # as the footer tells
    assert report.queue_bytes == 0


@pytest.mark.heavy
def test_a_history_keeps_few_points_of_a_long_run():
    metrics, history = Metrics(), History()
    for second in range(20_000):
        metrics.time.elapsed, metrics.rows = float(second), second
        history.update(metrics)
    seconds = [point[0] for point in metrics.history]
    assert 100 < len(seconds) < 600
    assert seconds == sorted(seconds)
    assert seconds[0] == 0
    assert seconds[-1] > 19_000
