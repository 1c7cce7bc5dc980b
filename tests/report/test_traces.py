"""Traces: arrows from reading to delivery, the page of one, one clock for several, what is served of a run."""

import json
import os
import random
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress
from threading import Event, Thread
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import col
from cedar.cli import main
from cedar.control.timeline import Recording, TaskTime
from cedar.report.saved import of_json, to_json


def add_one(x: int) -> int:
    return x + 1


def events(path, phase):
    with open(path, encoding="utf-8") as file:
        return [event for event in json.load(file)["traceEvents"] if event["ph"] == phase]


def files(folder, count=4, rows=1000):
    for number in range(count):
        data = {"x": list(range(number * rows, (number + 1) * rows))}
        pq.write_table(pa.table(data), folder / f"{number}.parquet", row_group_size=250)
    return cedar.read_parquet(f"{folder}/*.parquet")


def traced(folder, **options):
    path = folder / "run.json"
    with files(folder).map(add_one, "x").batch(100).loader(trace=path, **options) as loader:
        for _ in range(2):
            list(loader)
        return path, loader.report()


def served(url, path, **query):
    parts = urlsplit(url)
    asked = "&".join([parts.query, *(f"{name}={value}" for name, value in query.items())])
    with urllib.request.urlopen(f"{parts.scheme}://{parts.netloc}{path}?{asked}", timeout=30) as answer:
        return answer.read().decode(), answer.headers


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


def test_a_trace_is_shown_as_a_page(tmp_path, capsys):
    path, report = traced(tmp_path, executor="threads")
    assert main(["view", str(path)]) == 0
    page = (tmp_path / "run.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "8,000 rows" in page
    assert "map(add_one)" in page
    assert page.count("<script") == 2
    data = json.loads(page.split('id="cedar-spans">')[1].split("</script>")[0])
    shown = dict.fromkeys(data["names"], 0.0)
    for i in range(0, len(data["spans"]), 4):
        shown[data["names"][data["spans"][i + 2]]] += data["spans"][i + 3] / 1e6
    for line in report.workers_time:
        if line.label in shown:
            assert shown[line.label] == pytest.approx(line.seconds, rel=0.03, abs=1e-3)
    assert cedar.view_trace(path, tmp_path / "other.html") == str(tmp_path / "other.html")


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


def test_a_saved_report_is_the_report(tmp_path):
    _, report = traced(tmp_path, executor="threads")
    again = of_json(json.loads(json.dumps(to_json(report))))
    assert again == report
    assert str(again) == str(report)


def test_a_file_that_anybody_may_have_written_gives_a_page_or_an_error_that_names_it(tmp_path):
    path, _ = traced(tmp_path, executor="inline")
    good = json.loads(path.read_text())
    rng, odd = random.Random(1), [None, -1, "x", [], {}, 1e400, True, "</script><script>alert(1)</script>", [[1]]]
    bad = tmp_path / "bad.json"
    for _ in range(300):
        found = json.loads(json.dumps(good))
        found["traceEvents"] = found["traceEvents"][:5]
        place = rng.choice([found, found["cedar"], found["cedar"], rng.choice(found["traceEvents"])])
        place[rng.choice(list(place))] = rng.choice(odd)
        bad.write_text(json.dumps(found))
        (tmp_path / "bad.html").unlink(missing_ok=True)
        with suppress(cedar.PipelineError):
            cedar.view_trace(bad, tmp_path / "bad.html")
        if (tmp_path / "bad.html").exists():
            assert "<script>alert" not in (tmp_path / "bad.html").read_text(encoding="utf-8")
    for text in ("", "[]", "{}", '{"traceEvents": [1]}', "[" * 100_000):
        bad.write_text(text)
        with pytest.raises(cedar.PipelineError, match="bad.json"):
            cedar.view_trace(bad)


def test_torchs_profiler_is_on_the_same_clock(tmp_path, capsys):
    torch = pytest.importorskip("torch")
    with (
        torch.profiler.profile() as profiler,
        files(tmp_path).batch(100).loader(trace=tmp_path / "run.json", executor="inline") as loader,
    ):
        for batch in loader:
            with torch.profiler.record_function("step"):
                time.sleep(0.001)
                torch.as_tensor(batch["x"]).sum()
    profiler.export_chrome_trace(str(tmp_path / "torch.json"))
    assert main(["merge", *(str(tmp_path / name) for name in ("both.json", "run.json", "torch.json"))]) == 0
    both = events(tmp_path / "both.json", "X")
    steps = [e for e in both if e["name"] == "step" and e["cat"] == "user_annotation"]
    trainer = [e for e in both if e["name"] == "the trainer"]
    assert len(steps) == len(trainer) == 40
    for step, mine in zip(sorted(steps, key=lambda e: e["ts"]), trainer, strict=True):
        assert mine["ts"] - 500 <= step["ts"]  # microseconds: two clocks are read one after the other
        assert step["ts"] + step["dur"] <= mine["ts"] + mine["dur"] + 500
    with pytest.raises(cedar.PipelineError, match="does not say when its clock began"):
        (tmp_path / "none.json").write_text('{"traceEvents": []}')
        cedar.merge_traces(tmp_path / "both.json", [tmp_path / "none.json"])


def test_a_run_that_is_served_has_a_page_and_gives_traces(tmp_path, capsys):
    pipeline = files(tmp_path).map(add_one, "x").batch(100)
    with pipeline.repeat().loader(serve="127.0.0.1:0", executor="threads") as loader:
        batches = iter(loader)
        for _ in range(50):
            next(batches)
        page, headers = served(loader.url, "/")
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "5,000 rows" in page
        assert "map(add_one)" in served(loader.url, "/report")[0]
        with pytest.raises(urllib.error.HTTPError) as refused:
            served(loader.url, "/trace", seconds=61)
        assert refused.value.code == 400
        got = {}
        asker = Thread(target=lambda: got.update(trace=served(loader.url, "/trace", seconds=1)[0]))
        asker.start()
        while asker.is_alive():
            next(batches)
        found = json.loads(got["trace"])
        assert sum(event["name"] == "map(add_one)" for event in found["traceEvents"]) > 0
        assert loader._metrics.time.recording is None  # nobody asks any more
        (tmp_path / "now.json").write_text(got["trace"])
        cedar.view_trace(tmp_path / "now.json")


def test_top_shows_all_ranks_and_which_of_them_waits_most(tmp_path, capsys):
    pipeline = files(tmp_path).batch(100)
    with ExitStack() as stack:
        options = {"serve": "127.0.0.1:0", "world": 2, "executor": "inline"}
        loaders = [stack.enter_context(pipeline.loader(rank=rank, **options)) for rank in range(2)]
        for rank, loader in enumerate(loaders):
            for _ in loader:
                time.sleep(0.05 * rank)  # the trainer of rank 1 works nearly all the time, on any machine
        assert main(["top", *(loader.url for loader in loaders)]) == 0
    told = capsys.readouterr().out
    assert told.startswith("2 ranks, ")
    assert "rank 0 waits most" in told
    assert "rank 1 of 2" in told


def test_a_process_is_asked_by_its_id(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pipeline, me = files(tmp_path).batch(100), os.getpid()
    with pytest.raises(cedar.PipelineError, match=f"process {me} serves no run"):
        cedar.served_by(me)
    with subprocess.Popen([sys.executable, "-c", "pass"]) as killed:
        pass
    with pipeline.loader(serve="127.0.0.1:0", executor="inline") as loader:
        list(loader)
        (noted,) = (tmp_path / "cache" / "cedar" / "served").iterdir()
        assert noted.stat().st_mode & 0o777 == 0o600
        assert noted.read_text() == loader.url
        of_dead = noted.with_name(noted.name.replace(f".{me}.", f".{killed.pid}."))
        of_dead.write_text("http://127.0.0.1:1/")
        noted.with_name("mine.txt").write_text("not ours")
        assert main(["top", str(me)]) == 0
        assert "rank 0 of 1" in capsys.readouterr().out
        if not os.fork():
            loader.close()
            os._exit(0)
        os.wait()
        with pipeline.loader(serve="127.0.0.1:0", executor="inline") as other:
            assert set(cedar.served_by(me)) == {loader.url, other.url}
            assert not of_dead.exists()
            assert main(["trace", str(me), "--seconds", "1"]) == 1
            assert f"process {me} serves 2 loaders" in capsys.readouterr().err
        assert main(["trace", str(me), "--seconds", "1", "--out", str(tmp_path / "one.json")]) == 0
        assert json.loads((tmp_path / "one.json").read_text())["traceEvents"]
    assert [path.name for path in noted.parent.iterdir()] == ["mine.txt"]


def test_all_ranks_are_on_one_page(tmp_path):
    pipeline = files(tmp_path).batch(100)
    loaders = [pipeline.loader(serve="127.0.0.1:0", rank=r, world=2, executor="inline") for r in range(2)]
    urls = [loader.url for loader in loaders]
    command = [sys.executable, "-m", "cedar", "top", *urls, "--page", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            url = process.stdout.readline().split()[0]
            page, headers = served(url, "/")
            assert "2 ranks, " in page
            assert "rank 0 of 2" in page
            assert "rank 1 of 2" in page
            assert "script" not in headers["Content-Security-Policy"]
            for _ in loaders[0]:
                pass
            assert "2,000 rows" in served(url, "/")[0]
            loaders[1].close()
            later = served(url, "/")[0]
            assert "1 ranks, " in later
            assert "no run answers there" in later
            with pytest.raises(urllib.error.HTTPError):
                served(url.partition("?")[0] + "?token=x", "/")
        finally:
            process.terminate()
    loaders[0].close()
    with pytest.raises(SystemExit):
        main(["top", "--page", "127.0.0.1:0"])


def test_a_report_has_the_words_of_the_user(tmp_path):
    pipeline = files(tmp_path).filter(col("x") % 10 < 8).batch(100)
    with pipeline.loader(executor="inline", plan="off") as loader:
        list(loader)
        report = loader.report()
    assert 'filter(col("x") % 10 < 8)' in report.operators
    assert 'filter(col("x") % 10 < 8)' in [label for label, _ in report.graph]
