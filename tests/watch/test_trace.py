"""A run as a trace: its sums are the report's, and arrows lead from reading to delivery."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from threading import Event, Thread

import pytest

import cedar
from cedar.control.timeline import Recording, TaskTime
from tests.watch.toy_runs import events, numbers, traced


def spans(path):
    with open(path, encoding="utf-8") as file:
        return [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_the_sums_of_a_trace_are_those_of_the_report(tmp_path, executor):
    path = tmp_path / "run.json"
    with numbers().loader(trace=path, executor=executor, workers=2) as loader:
        for _ in range(2):
            assert sum(len(batch["x"]) for batch in loader) == 2000
        report = loader.report()
    found, places = Counter(), set()
    for event in spans(path):
        found[event["name"]] += event["dur"] / 1e6
        places.add(event["pid"])
    for line in report.workers_time:
        if line.label in found and line.label != "the trainer":
            assert found[line.label] == pytest.approx(line.seconds, rel=0.01, abs=1e-5), line.label
    assert {line.label for line in report.workers_time} <= {*found, "idle", "between tasks"}
    waited = report.seconds - report.loader_time["the trainer"]
    assert found["waiting for data"] == pytest.approx(waited, rel=0.03)
    assert len(places) > 1 or executor != "processes"


def test_a_trace_is_bounded_and_each_rank_has_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr("cedar.watch.trace.MAX_RECORDED", 5)
    with numbers().loader(trace=str(tmp_path / "run.json"), rank=1, world=2, executor="inline") as loader:
        list(loader)
    assert len([event for event in spans(tmp_path / "run.1.json") if event["name"] == "waiting for data"]) == 5


def test_a_trace_of_many_short_iterations_is_whole_once_the_loader_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr("cedar.watch.trace._MAX_WRITE_SHARE", 1e-9)  # written once, and at the end
    path = tmp_path / "run.json"
    with numbers(100).loader(trace=path, executor="inline") as loader:
        for _ in range(20):
            list(loader)
        early = len(spans(path))
    assert len(spans(path)) > early
    assert (
        len([event for event in spans(path) if event["name"] == "waiting for data"]) == 20 * 3
    )  # the end is waited for


def test_a_trace_that_cannot_be_written_ends_no_run(tmp_path, caplog):
    folder = tmp_path / "gone"
    folder.mkdir()
    with numbers().loader(trace=folder / "run.json", executor="inline") as loader:
        folder.rmdir()
        assert sum(len(batch["x"]) for batch in loader) > 0
    assert "the trace was not written" in caplog.text


def test_a_trace_into_a_folder_that_is_not_there_is_refused_before_the_run(tmp_path):
    with pytest.raises(cedar.PipelineError, match="folder .* does not exist"):
        numbers().loader(trace=tmp_path / "no" / "run.json")


def test_a_trace_opens_in_perfetto(tmp_path):
    processor = pytest.importorskip("perfetto.trace_processor", reason="perfetto is not installed")
    if (binary := shutil.which("trace_processor_shell")) is None:
        pytest.skip("Perfetto's trace_processor_shell is not on the PATH")
    with numbers().loader(trace=tmp_path / "run.json", executor="threads") as loader:
        list(loader)
    config = processor.TraceProcessorConfig(bin_path=binary)
    with processor.TraceProcessor(trace=str(tmp_path / "run.json"), config=config) as opened:
        rows = list(opened.query("select sum(dur) as total from slice where name like 'map%'"))
    mapped = sum(seconds for label, seconds in loader.report().operators.items() if label.startswith("map"))
    assert rows[0].total / 1e9 == pytest.approx(mapped, rel=0.03)


@pytest.mark.heavy
@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_an_arrow_leads_from_what_read_a_batch_to_its_delivery(tmp_path, executor):
    path, _ = traced(tmp_path, executor=executor, workers=2)
    begins = {event["id"]: event for event in events(path, "s")}
    ends = {event["id"]: event for event in events(path, "f")}
    spans = events(path, "X")
    assert begins.keys() == ends.keys()
    assert len({event["ts"] for event in ends.values()}) == 80  # each batch of both epochs
    waits = [(e["ts"], e["ts"] + e["dur"]) for e in spans if e["name"] == "waiting for data"]
    reads = [e for e in spans if e["name"].startswith("read_parquet")]
    tasks = [e for e in spans if e["name"] == "task"]
    for number, begin in begins.items():
        end = ends[number]
        assert begin["ts"] <= end["ts"]
        assert any(start <= end["ts"] <= stop for start, stop in waits)
        (task,) = [t for t in tasks if (t["pid"], t["tid"]) == (begin["pid"], begin["tid"])
                   and t["ts"] <= begin["ts"] <= t["ts"] + t["dur"]]  # fmt: skip
        assert any(task["ts"] <= read["ts"] <= task["ts"] + task["dur"] for read in reads)


def test_the_arrows_of_a_batch_are_from_the_splits_of_its_rows(tmp_path):
    """16 splits of 250 rows: batch 2 takes rows 200 to 299, so from the first two."""
    path, _ = traced(tmp_path, executor="inline")
    sources = {}
    order = sorted({event["ts"] for event in events(path, "s")})
    for begin in events(path, "s"):
        (end,) = [event for event in events(path, "f") if event["id"] == begin["id"]]
        sources.setdefault(end["ts"], []).append(order.index(begin["ts"]))
    wanted = [sorted({rows // 250, (rows + 99) // 250}) for rows in range(0, 4000, 100)]
    assert [sorted(sources[ts]) for ts in sorted(sources)] == wanted + [[i + 16 for i in each] for each in wanted]


def test_a_part_says_how_long_it_had_a_core(tmp_path):
    path, _ = traced(tmp_path, executor="threads")
    parts = [event for event in events(path, "X") if event["name"] == "map(add_one)"]
    assert parts
    assert all(0 <= event["args"]["cpu_ms"] * 1e3 <= event["dur"] * 1.5 + 100 for event in parts)


def test_a_recording_is_read_while_a_run_adds_to_it():
    recording, read = Recording(50), []
    stop = Event()

    def add():
        number = 0
        while not stop.is_set():
            task = TaskTime(parts=[(("operator", (number % 7,)), 1.0, 0.5)], began=float(number), took=1.0)
            task.ends = (0, 0, number, 0, 0, number) if number % 2 else ()
            recording.task(task)
            recording.handed = task.ends
            recording.wait(number, number + 1)
            number += 1

    thread = Thread(target=add)
    thread.start()
    try:
        for _ in range(200):
            spans, waits = recording.tasks(), recording.waits()
            read.append(len(spans))
            assert len(waits) <= 50
            first = int(spans[0].began) if spans else 0
            assert [span.began for span in spans] == list(range(first, first + len(spans)))
    finally:
        stop.set()
        thread.join()
    assert max(read) == 50
