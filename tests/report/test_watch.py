"""What watches a run: the trace, the callback, the address, the page; all say what the report says."""

import faulthandler
import json
import os
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar.cli import main
from cedar.cli.top import told
from cedar.control.timeline import Spent, Timeline
from cedar.engine.metrics import Metrics
from cedar.report import observers, progress, serve
from cedar.report.observers import History
from cedar.report.progress import Progress, RecentRate, Remaining


def add_one(x: int) -> int:
    return x + 1


def numbers(n=2000):
    return cedar.from_items([{"x": i} for i in range(n)]).map(add_one, "x").shuffle(seed=1).batch(50)


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
    monkeypatch.setattr("cedar.report.trace.MOST", 5)
    with numbers().loader(trace=str(tmp_path / "run.json"), rank=1, world=2, executor="inline") as loader:
        list(loader)
    assert len([event for event in spans(tmp_path / "run.1.json") if event["name"] == "waiting for data"]) == 5


def test_a_trace_of_many_short_iterations_is_whole_once_the_loader_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr("cedar.report.trace._SHARE", 1e-9)  # written once, and at the end
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
    with pytest.raises(cedar.PipelineError, match="there is no folder"):
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


def test_a_callback_gets_figures_when_an_iteration_ends_and_now_and_then(monkeypatch):
    monkeypatch.setattr(observers, "_LOOK", 0.0)
    seen = []
    with numbers().loader(on_metrics=seen.append, executor="inline") as loader:
        list(loader)
        assert [(each["rows"], each["epoch"], each["step"]) for each in seen] == [(2000, 0, 40)]
        monkeypatch.setattr(observers, "_CALLBACK", 0.0)
        list(loader)
        list(loader)
    assert len(seen) > 40
    assert json.loads(json.dumps(seen[-1])) == seen[-1]
    with pytest.raises(cedar.PipelineError, match="on_metrics"):
        numbers().loader(on_metrics=3)


def asked(url):
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_status_is_served_to_who_has_the_token(capsys):
    with numbers().loader(serve="127.0.0.1:0", executor="threads", workers=2) as loader:
        batches = iter(loader)
        next(batches)
        code, text = asked(loader.url)
        found = json.loads(text)
        assert code == 200
        assert (found["step"], found["steps"], found["rows"]) == (1, 40, 50)
        assert asked(loader.url[:-1])[0] == 403
        assert asked(loader.url.partition("?")[0])[0] == 403
        assert asked(loader.url.replace("/status", "/etc"))[0] == 404
        assert main(["top", loader.url]) == 0
        shown = capsys.readouterr().out
        assert "step 1 of 40, 50 rows" in shown
        assert "threads, 2 worker(s)" in shown
        batches.close()
        url = loader.url
    assert not [thread for thread in threading.enumerate() if thread.name == "cedar-serve"]
    assert main(["top", url]) == 1
    assert "no run answers there" in capsys.readouterr().err
    assert main(["top", "file:///etc/passwd"]) == 1


def test_a_loader_that_is_let_go_of_is_served_no_more():
    import gc

    loader = numbers().loader(serve="127.0.0.1:0", executor="inline")
    del loader
    gc.collect()
    assert not [thread for thread in threading.enumerate() if thread.name == "cedar-serve"]


def test_a_fork_leaves_the_address_to_its_parent():
    import gc

    loader = numbers().loader(serve="127.0.0.1:0", executor="inline")
    child = os.fork()
    if not child:
        faulthandler.dump_traceback_later(20, exit=True)  # as somebody who waits for a thread that is not there
        loader.close()
        del loader
        gc.collect()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert asked(loader.url)[0] == 200
    loader.close()


def test_a_token_of_ones_own(monkeypatch):
    monkeypatch.setenv(serve.TOKEN, "known")
    with numbers().loader(serve="127.0.0.1:0", executor="inline") as loader:
        assert loader.url.endswith("/status?token=known")


@pytest.mark.parametrize("address", ["", "here", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999", 8080])
def test_an_address_that_is_none(address):
    with pytest.raises(cedar.PipelineError, match="is no address") as caught:
        numbers().loader(serve=address)
    assert caught.value.site.file == __file__


def test_an_address_that_is_taken():
    refused = pytest.raises(cedar.PipelineError, match="cannot be listened on")
    with numbers().loader(serve="127.0.0.1:0", executor="inline") as loader, refused as caught:
        numbers().loader(serve=urlsplit(loader.url).netloc)
    assert "port 0" in caught.value.fix


def test_metrics_say_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with numbers().loader(serve="127.0.0.1:0", executor="inline") as loader:
        code, text = asked(loader.url.replace("/status", "/metrics"))
    assert code == 501
    assert "cedar-data[metrics]" in text


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


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_bytes_are_those_of_files_read_and_of_rows_not_taken_yet(tmp_path, executor):
    pq.write_table(pa.table({"x": pa.array(range(20_000))}), tmp_path / "x.parquet", row_group_size=1000)
    pipeline = cedar.read_parquet(str(tmp_path / "x.parquet")).map(add_one, "x").batch(1000)
    with pipeline.loader(executor=executor, workers=2, on_metrics=lambda _: None, plan="off") as loader:
        batches = iter(loader)
        next(batches)
        deadline = time.monotonic() + 60
        while not (queued := loader.report().queue_bytes) and time.monotonic() < deadline:
            time.sleep(0.01)  # the next ones are under way
        assert queued >= 8000  # a batch of int64, at least
        assert len(list(batches)) == 19
        report = loader.report()
    assert 160_000 <= report.bytes_read <= 200_000  # as the footer tells
    assert report.queue_bytes == 0


def test_a_report_is_one_page_without_links(tmp_path, monkeypatch):
    monkeypatch.setattr(observers, "_LOOK", 0.0)
    with numbers().loader(on_metrics=lambda figures: None, executor="threads") as loader:
        list(loader)
        report = loader.report()
        assert "map(add_one)" in loader._repr_html_()
    report.html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert page.count("<svg") == 2  # the operators, and what was over time
    assert page.count("map(add_one)") >= 3
    links = [word for word in page.split('"') if word.startswith(("http:", "https:"))]
    assert set(links) == {"http://www.w3.org/2000/svg"}
    assert "<script" not in page


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


def test_rates_are_of_the_last_seconds():
    metrics, lately = Metrics(), RecentRate()
    for second in range(100):
        metrics.time.elapsed, metrics.rows = float(second), metrics.rows + (1000 if second < 50 else 10)
        metrics.time.waited += 0.0 if second < 50 else 1.0
        rate, stall = lately.of(metrics)
    assert rate == pytest.approx(10)
    assert stall == pytest.approx(1)


def test_the_time_left_counts_from_the_beginning_of_the_epoch():
    left = Remaining()
    assert left.of(90.0, 0, 90, 100) == (0.9, pytest.approx(10))
    assert left.of(200.0, 1, 0, 100) == (0.0, None)
    assert left.of(210.0, 1, 50, 100) == (0.5, pytest.approx(10))
    assert left.of(211.0, 1, 50, None) is None


def test_where_nobody_looks_a_line_is_written_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr(progress, "_PLAIN_SECONDS", 0.0)
    metrics = Metrics(Timeline({("operator", (1,)): Spent(2.0, 2.0)}, capacity=2.0, elapsed=2.0, waited=2.0), rows=10)
    metrics.labels = {1: "map(slow)"}
    with Progress("loader", lambda: (5, 10), lambda: 3, plain=True) as line:
        line.update(metrics)
    assert capsys.readouterr().err.startswith(
        "loader: epoch 3, 10 rows, 50%, 5 rows/s, waited for data 100%, bottleneck: map(slow) ("
    )
    with Progress("count", lambda: (5, 10)) as line:
        line.update(metrics)
    assert capsys.readouterr().err == ""


def test_nothing_is_written_unless_asked_for(monkeypatch, capsys):
    monkeypatch.setattr(progress, "_PLAIN_SECONDS", 0.0)
    with numbers().loader(executor="inline") as loader:
        list(loader)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(observers, "_LOOK", 0.0)
    with numbers().loader(executor="inline", progress=True) as loader:
        list(loader)
    assert "loader: epoch 0, 100 rows, 2%" in capsys.readouterr().err


def test_top_shows_rates_between_two_looks():
    with numbers().loader(executor="inline") as loader:
        list(loader)
    from cedar.report.status import status

    before = status(loader)
    after = before | {"rows": before["rows"] + 500, "seconds": before["seconds"] + 5, "stall": before["stall"]}
    assert "100 rows/s" in told(after, before)
