"""Real processes: workers that are killed, stopped, loop for ever; a supervisor that dies; a store that dies."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from cedar.cli import main, train
from cedar.core.errors import CedarError
from cedar.trainers.common import config, links
from cedar.trainers.common.files import read_lines
from cedar.trainers.resilient import report
from cedar.trainers.resilient.control import store
from cedar.trainers.resilient.control.board import Board
from cedar.trainers.resilient.options import Options
from cedar.trainers.resilient.pipeline import Workers
from cedar.trainers.resilient.run import KEY
from cedar.trainers.resilient.text import text_pipeline
from tests.how_much import LONG

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(sys.platform != "linux", reason="workers are forked, and die with their supervisor on Linux"),
]

CONFIG = """
[data]
paths = "{paths}"
length = 8
batch = 8
[model]
layers = 2
width = 8
heads = 2
dropout = 0.1
[pipeline]
micro_batches = 2
[optimizer]
warmup = 2
clip = 0.5
[run]
folder = "{folder}"
heartbeat = 3.0
"""


TAKES_MINUTES = pytest.mark.skipif(not LONG, reason="takes minutes: make test-long runs it")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"line {i}: {'abcdefghij' * (i % 5)}" for i in range(400)))
    path = tmp_path / "run.toml"
    path.write_text(CONFIG.format(paths=text, folder=tmp_path / "run"))
    return path


def reference(path: Path, changes: list[str]) -> dict[int, str]:
    """The digest of each stage's weights after a run in one process, without schedules, groups and failures."""
    from cedar.trainers.resilient.member import digest
    from cedar.trainers.resilient.model import AdamW, Engine

    options = config.load(str(path), Options, changes)
    pipeline = text_pipeline(options, 2, Workers(2))
    engines = [
        Engine(pipeline.module(stage), stage, 2, pipeline.loss, tied=pipeline.tied, share=1 / 4) for stage in range(2)
    ]
    states = [engine.begin for engine in engines]
    optimizer = AdamW(options.optimizer, options.run.steps)
    data = pipeline.open()
    shared = engines[0].layout.tied
    for step in range(options.run.steps):
        totals = [torch.zeros(engine.layout.size) for engine in engines]
        for engine, state in zip(engines, states, strict=True):
            engine.load(state)
        for key in ((0, 0), (0, 1), (1, 0), (1, 1)):
            sent = engines[0].forward(step, key, data.inputs(step, key), None)
            engines[1].forward(step, key, sent, data.targets(step, key))
            engines[0].backward_input(key, engines[1].backward_input(key, None))
            rows = [engine.backward_weight(key) for engine in engines]
            for stage in range(2):
                totals[stage][shared:] += rows[stage][shared:]
                totals[stage][:shared] += rows[0][:shared]
                totals[stage][:shared] += rows[1][:shared]
        norms = [float((totals[0] ** 2).sum()), float((totals[1][shared:] ** 2).sum())]
        scale = optimizer.scale(norms)
        states = [optimizer.step(s, t, e.layout, scale) for s, t, e in zip(states, totals, engines, strict=True)]
    data.close()
    return {stage: digest(state) for stage, state in enumerate(states)}


def started(path: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "cedar", "train", "resilient", str(path), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str], seconds: float = 300) -> str:
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
    assert process.returncode == 0, out + err
    return out


def told(tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / "run" / "report.json").read_text())
    return found


def check(record: dict[str, Any], expected: dict[int, str], workers: int | None = None) -> None:
    stages = {worker: expected[int(worker[1])] for worker in record["ended"]}
    assert {worker: one["digest"] for worker, one in record["ended"].items()} == stages
    assert workers is None or len(stages) == workers


def test_a_kill_changes_no_bit(file: Path, tmp_path: Path) -> None:
    changes = ["run.steps=8", "run.save_every=0"]
    out = ended(started(file, *changes, "--chaos", "kill=3@step3:6"))
    record = told(tmp_path)
    check(record, reference(file, changes), workers=3)
    assert "signal 9" in " ".join(event["why"] for event in record["events"])
    assert "recoveries" in out
    assert "steps: 0 to 8; 2 stages of 2 workers" in out
    assert [line["step"] for line in read_lines(str(tmp_path / "run" / "metrics.jsonl"))] == list(range(8))
    assert (tmp_path / "run" / "plans" / "plan_0.json").exists()


def test_the_example_runs_with_the_defaults_of_the_command() -> None:
    """Its batch could not be cut into 2 x 4 micro-batches."""
    parser = argparse.ArgumentParser()
    train.add(parser.add_subparsers())
    example = str(Path(__file__).parents[3] / "examples" / "resilient.toml")
    chosen = parser.parse_args(["train", "resilient", example])
    options = config.load(chosen.config, Options, chosen.changes)
    for stages, replicas in ((chosen.stages, chosen.replicas), (3, 3)):  # and as its head says
        assert text_pipeline(options, stages, Workers(replicas)).rows > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_told_in_a_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "resilient", str(file), "run.device=cuda"]) == 1
    told = capsys.readouterr().err
    assert "run.device is 'cuda', and torch sees 0 GPUs" in told
    assert "Traceback" not in told


@TAKES_MINUTES
def test_kills_a_lost_stage_and_an_endless_loop_change_no_bit(file: Path, tmp_path: Path) -> None:
    """A kill, a rejoin from a peer, both workers of a stage killed: it goes back to a checkpoint alone; then a loop."""
    changes = ["run.steps=24", "run.save_every=5", "run.pace=0.004"]
    chaos = "kill=3@step3:6, rejoin@step5, kill=0@step12:2, kill=1@step12:2, loop=2@step18:3"
    out = ended(started(file, *changes, "--chaos", chaos))
    record = told(tmp_path)
    check(record, reference(file, changes))
    happened = {event["what"] for event in record["events"]}
    assert {"start", "failure", "replay"} <= happened
    assert "restore" not in happened
    whys = " ".join(event["why"] for event in record["events"])
    assert "signal 9" in whys
    assert "no progress" in whys
    assert "for 120 s" not in whys  # that is what a first step may take
    assert "recoveries" in out
    assert (tmp_path / "run" / "checkpoints" / "step-00000024" / "index.json").exists()
    assert (tmp_path / "run" / "plans" / "plan_0.json").exists()

    ended(started(file, *changes, "run.steps=26", "--stages", "1", "--resume"))
    again = told(tmp_path)
    assert [step for step, _, _ in again["steps"]] == [24, 25]
    assert len({one["digest"] for one in again["ended"].values()}) == 1

    with pytest.raises(CedarError, match="holds the files of another run"):
        text_pipeline(config.load(str(file), Options, changes), 2, Workers(2)).train()


@TAKES_MINUTES
def test_a_machine_dies_with_its_workers_and_another_takes_over(file: Path, tmp_path: Path) -> None:
    changes = ["run.steps=60", "run.save_every=0", "run.pace=0.015", "run.silence=5.0", 'pipeline.mode="staggered"']
    lead = started(file, *changes, "--machines", "2")
    others = []
    try:
        assert lead.stdout is not None
        line = lead.stdout.readline()
        match = re.search(r"at (\S+)", line)
        assert match is not None, line
        for _ in range(2):
            others.append(started(file, *changes, "--join", match[1]))
            assert others[-1].stdout is not None
            assert others[-1].stdout.readline().startswith("joined")
        host, _, port = match[1].rpartition(":")
        board = Board(store.connect(host, int(port), links.read_key(str(tmp_path / "run" / KEY))))
        limit = time.monotonic() + 120
        while board.take("done/1/4") is None:  # the run is in its midst
            assert time.monotonic() < limit
            time.sleep(0.05)
        os.kill(others[0].pid, signal.SIGKILL)  # its workers die with it
        ended(lead)
        ended(others[1], 60)
    finally:
        for process in (lead, *others):
            process.kill()
            process.communicate()
    record = told(tmp_path)
    assert {"failure", "join"} <= {event["what"] for event in record["events"]}
    check(record, reference(file, changes), workers=4)


def test_a_store_that_dies_ends_the_run_with_an_error(file: Path, tmp_path: Path) -> None:
    lead = started(file, "--machines", "2")
    try:
        assert lead.stdout is not None
        match = re.search(r"at (\S+):(\d+)", lead.stdout.readline())
        assert match is not None
        key = links.read_key(str(tmp_path / "run" / KEY))
        pid = Board(store.connect(match[1], int(match[2]), key)).take("store")
        os.kill(pid, signal.SIGKILL)
        _, err = lead.communicate(timeout=120)
    finally:
        lead.kill()
    assert lead.returncode not in (0, None)
    assert "the run's store is gone" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--replicas", "3"], "cannot be cut into 3 x 2 micro-batches"),
        (["--stages", "5"], "2 layers cannot be cut into 5 stages"),
        (["--chaos", "kill=9@step3"], "workers are 0 to 3"),
        (["--chaos", "explode"], "'explode' is unknown"),
        (["--join", "nowhere"], "is no address"),
        (["pipeline.memory=much"], "memory is 'much'"),
        (["pipeline.mode=never"], "'never'"),
        (["run.heartbeat=0"], "give seconds"),
    ],
)
def test_bad_input_is_told(file: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "resilient", str(file), *arguments]) != 0
    assert words in capsys.readouterr().err


def test_the_report_tells_recoveries_and_draws(tmp_path: Path) -> None:
    from cedar.trainers.resilient.control.lead import Event
    from cedar.trainers.resilient.run import Record
    from cedar.trainers.resilient.schedule import Worker

    times = {"seen": 10.3, "connected": 10.35, "agreed": 10.4, "planned": 10.45, "redo": 10.5, "kept": 3.0}
    record = Record(
        [(step, 9.0 + step, 2.0) for step in range(4)],
        [Event("failure", Worker(1, 0), 2, 10.1, 10.2, "killed")],
        {"1": {"(1, 1)": times}, "2": {"(0, 0)": times, "(1, 1)": times | {"redo": 10.7}}},
        {"2/0": ("kill", 10.0)},
    )
    (one,) = report.recoveries(record)
    found = [one.detection, one.decision, one.rebuild, one.plan, one.redo, one.redo_all]
    assert found == pytest.approx([0.1, 0.1, 0.2, 0.05, 0.5, 0.7])
    assert one.kept == 6
    pytest.importorskip("matplotlib")
    report.plot(record, str(tmp_path / "plot.png"))
    assert (tmp_path / "plot.png").stat().st_size > 1000
