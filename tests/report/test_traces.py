"""Traces in files: the page of one, one clock for several, and the pages of runs that are served."""

import json
import random
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress

import pytest

import cedar
from cedar import col
from cedar.cli import main
from tests.report.toy_runs import events, files, served, traced


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
