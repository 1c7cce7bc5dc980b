"""``cedar top``: all ranks of a job, by address or by process."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from threading import Thread
from typing import Any

import pytest

import cedar
from cedar.cli import main
from cedar.cli.top import page_of, page_of_service
from cedar.cluster.dask.signals import Signal
from cedar.cluster.service.status import ServiceStatus
from tests.watch.toy_runs import events, files, served, traced


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


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"SSH-2.0-OpenSSH_9\r\n", "no run answers at this address: SSH-2.0-OpenSSH_9\n"),
        (b"HTTP/1.0 200 OK\r\n\r\n" + b'{"a": 1}', "the server at this address is not a run: KeyError: 'seconds'"),
        (b"HTTP/1.0 200 OK\r\n\r\n[1]", "the server at this address is not a run: TypeError"),
        (
            b"HTTP/1.0 403 Forbidden\r\n\r\nthe token is wrong\n",
            "refused the request: HTTP Error 403: Forbidden: the token is wrong",
        ),
    ],
)
def test_what_answers_and_is_no_run_is_an_error(answer, said, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        once = Thread(target=answered, args=(server, answer))
        once.start()
        assert main(["top", f"http://127.0.0.1:{server.getsockname()[1]}/status"]) == 1
        once.join()
    assert said in capsys.readouterr().err


def answered(server, answer):
    with server.accept()[0] as request_owner:
        request_owner.recv(4096)
        request_owner.sendall(answer)


@pytest.mark.parametrize("command", ["top", "trace"])
def test_what_is_no_address_is_an_error(command, capsys):
    assert main([command, "http://[bad"]) == 1
    assert "'http://[bad' is not the address of a run" in capsys.readouterr().err


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
            assert "no run answers at this address" in later
            with pytest.raises(urllib.error.HTTPError):
                served(url.partition("?")[0] + "?token=x", "/")
        finally:
            process.terminate()
    loaders[0].close()
    with pytest.raises(SystemExit):
        main(["top", "--page", "127.0.0.1:0"])


def test_a_rank_that_does_not_answer_is_named_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def ask(url: str) -> bytes:
        asked.append(url)
        if ":2/" in url:
            raise cedar.PipelineError("nothing <there>")
        return b"<p>rows</p>"

    monkeypatch.setattr("cedar.cli.top.ask", ask)
    page = page_of(["http://a:1/status?token=x", "http://b:2/status?token=y"], "2 < 3 ranks")
    assert asked == ["http://a:1/report?token=x", "http://b:2/report?token=y"]
    assert "<details open><summary>a:1</summary><p>rows</p></details>" in page
    assert "<details><summary>b:2</summary><p>nothing &lt;there&gt;</p></details>" in page
    assert "2 &lt; 3 ranks" in page
    assert "token" not in page


def test_jobs_and_workers_of_a_service_are_tables() -> None:
    job = Signal("run", "<train>", 1, 0, 8, 0.25, 1234.0, 2.5)
    status = ServiceStatus("tcp://a:1", (job,), bounds=(1, 4))
    page = page_of_service(status)
    assert page.count("<table") == 2
    assert page.count("<th ") == len(status.job_cells()[0]) + len(status.worker_cells()[0])
    assert "&lt;train&gt;</td>" in page
    assert "stalls</td>" in page


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
    monkeypatch.setattr("cedar.cli.top.ask", lambda *_: pytest.fail("it was recorded"))
    out = str(tmp_path / "none" / "out")
    for command in (["view", str(path), "--out", out], ["merge", out, str(path)], ["trace", "http://a", "--out", out]):
        assert main(command) == 1
        assert f"{out} cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "61", "x"])
def test_a_run_is_recorded_for_a_minute_at_most(seconds, capsys):
    with pytest.raises(SystemExit):
        main(["trace", "http://a", "--seconds", seconds])
    assert "not an integer from 1 to 60" in capsys.readouterr().err


STATUS = ServiceStatus("tcp://a:1", (Signal("run", "train", 1, 0, 8, 0.25, 1234.0, 2.5),), bounds=(1, 4))


def test_the_status_is_text_in_a_pipe_and_tables_in_a_terminal(monkeypatch: Any, capsys: Any) -> None:
    asked = []
    monkeypatch.setattr(cedar.Service, "at", lambda address: asked.append(address) or STATUS)
    assert main(["service", "status", "tcp://a:1"]) == 0
    assert capsys.readouterr().out == f"{STATUS}\n"
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["service", "status", "tcp://a:1"]) == 0
    shown = capsys.readouterr().out
    assert "━" in shown
    assert "stalls" in shown
    assert STATUS.summary() in shown
    assert asked == ["tcp://a:1"] * 2


def test_a_service_that_does_not_answer_is_an_error_in_a_line(monkeypatch: Any, capsys: Any) -> None:
    def nobody(address: str) -> Any:
        raise cedar.WorkerError(f"{address} does not answer")

    monkeypatch.setattr(cedar.Service, "at", nobody)
    assert main(["service", "status", "tcp://a:1", "--follow"]) == 1
    assert capsys.readouterr().err == "error: tcp://a:1 does not answer\n"


def test_a_service_starts_as_it_is_asked_to_and_ends_when_it_is_over(monkeypatch: Any, capsys: Any) -> None:
    made: list[Any] = []

    class Started:
        address, alive = "tls://127.0.0.1:9", False

        def __init__(self, *bounds: Any, **how: Any) -> None:
            made.append((bounds, how))

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            made.append("closed")

    monkeypatch.setattr(cedar, "Service", Started)
    assert main(["service", "start", "--workers", "2", "--max-workers", "4", "--port", "0", "--keep", "2GiB"]) == 0
    assert made == [((2, 4), {"host": "127.0.0.1", "port": 0, "keep": "2GiB"}), "closed"]
    assert "listening at tls://127.0.0.1:9\n" in capsys.readouterr().out


def test_an_action_is_needed(capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["service"])
    assert ended.value.code == 2
    assert "ACTION" in capsys.readouterr().err
