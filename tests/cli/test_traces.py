"""``cedar view`` and ``cedar merge``: a trace as a page, several on one clock."""

from __future__ import annotations

import json
import time

import pytest

import cedar
from cedar.cli import main, traces
from tests.watch.toy_runs import events, files, traced


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
    with pytest.raises(cedar.PipelineError, match="has no base time"):
        (tmp_path / "none.json").write_text('{"traceEvents": []}')
        cedar.merge_traces(tmp_path / "both.json", [tmp_path / "none.json"])


def test_what_cannot_be_written_is_an_error_before_anything_is_recorded(tmp_path, capsys, monkeypatch):
    path, _ = traced(tmp_path, executor="inline")
    monkeypatch.setattr(traces, "ask", lambda *_: pytest.fail("it was recorded"))
    out = str(tmp_path / "none" / "out")
    for command in (["view", str(path), "--out", out], ["merge", out, str(path)], ["trace", "http://a", "--out", out]):
        assert main(command) == 1
        assert f"{out} cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "61", "x"])
def test_a_run_is_recorded_for_a_minute_at_most(seconds, capsys):
    with pytest.raises(SystemExit):
        main(["trace", "http://a", "--seconds", seconds])
    assert "not an integer from 1 to 60" in capsys.readouterr().err
