"""What a run did so far, as plain values: they are those of its report."""

from __future__ import annotations

import json

import pytest

from cedar.cli.top import describe
from cedar.watch.status import figures, status
from tests.watch.toy_runs import asked, numbers


def test_values_are_plain_and_those_of_the_report():
    with numbers().loader(executor="inline", rank=1, world=2) as loader:
        batches = iter(loader)
        next(batches)
        found, report = status(loader), loader.report()
        batches.close()
    assert json.loads(json.dumps(found)) == found
    assert (found["rows"], found["deliveries"], found["step"], found["steps"]) == (50, 1, 1, 20)
    assert (found["rank"], found["world"], found["executor"]) == (1, 2, "inline")
    assert found["operator_seconds"] == report.operators
    assert found["worker_seconds"].keys() == {line.label for line in report.workers_time}


def test_figures_have_one_name_each_and_the_values_of_the_report():
    with numbers().loader(executor="inline") as loader:
        list(loader)
        report = loader.report()
    found = {figure.name: figure for figure in figures(report)}
    assert len(found) == len(list(figures(report)))
    assert (found["rows"].values, found["deliveries"].values) == ({"": 2000}, {"": 40})
    assert (found["operator_seconds"].values, found["operator_seconds"].label) == (report.operators, "operator")
    assert sum(found["worker_seconds"].values.values()) == pytest.approx(sum(x.seconds for x in report.workers_time))
    assert not found["memory_bytes"].counts


def test_metrics_parse_with_the_client_of_prometheus():
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus-client is not installed")
    with numbers().loader(serve="127.0.0.1:0", rank=1, world=2, executor="inline") as loader:
        list(loader)
        code, text = asked(loader.url.replace("/status", "/metrics"))
        report = loader.report()
    assert code == 200
    samples = {
        (each.name, *(v for k, v in sorted(each.labels.items()) if k != "rank")): each
        for family in parser.text_string_to_metric_families(text)
        for each in family.samples
    }
    assert samples["cedar_rows_total",].value == report.rows == 1000
    assert samples["cedar_rows_total",].labels == {"rank": "1"}
    assert samples["cedar_operator_seconds_total", "map(add_one)"].value == pytest.approx(
        report.operators["map(add_one)"]
    )
    assert samples["cedar_stall_ratio",].value == pytest.approx(report.stall)
    assert sum(each.value for key, each in samples.items() if key[0] == "cedar_loader_seconds_total") == pytest.approx(
        report.seconds
    )


def test_top_shows_rates_between_two_looks():
    with numbers().loader(executor="inline") as loader:
        list(loader)
    before = status(loader)
    after = before | {"rows": before["rows"] + 500, "seconds": before["seconds"] + 5, "stall": before["stall"]}
    assert "100 rows/s" in describe(after, before)
