"""Whole runs: metrics, plot, table, the command line, ranks as processes."""

import json
import os
import subprocess
import sys
import urllib.request
from functools import partial

import pytest

from cedar.cli import main
from cedar.trainers.common import config
from cedar.trainers.common.files import read_lines
from cedar.trainers.common.run import run as run_trainer
from cedar.trainers.moe.metrics import table
from cedar.trainers.moe.options import Options
from cedar.trainers.moe.trainer import Trainer
from tests.how_much import LONG
from tests.trainers.moe.toy_text import SETTINGS, STEPS, settings, write_text

run = partial(run_trainer, Trainer)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "text.txt", lines=80)


@pytest.mark.heavy
def test_a_run_leaves_metrics_checkpoints_and_a_plot(text, tmp_path):
    path = run(settings(text, tmp_path), quiet=True)
    lines = read_lines(path)
    assert [line["step"] for line in lines] == list(range(STEPS))
    assert [line["step"] for line in lines if line["held_out"] is not None] == [3, 7]
    for line in lines:
        for layer in line["layers"]:
            assert 0 < layer["survival"] <= 1
            assert sum(layer["counts"]) == 6 * 12 * 2
            assert sum(layer["replicas"]) == 8
            assert 0 < layer["entropy"] <= 1 <= layer["peak"]
            assert set(layer["seconds"]) >= {"routing", "planning", "experts"}
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["step-00000006", "step-00000008"]
    assert (tmp_path / "replicas.png").read_bytes().startswith(b"\x89PNG")
    from rich.console import Console

    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(table(lines))
    console.file.close()
    told = console.export_text()
    assert "block1" in told
    assert "8 steps" in told
    assert "survival" in told


@pytest.mark.heavy
def test_the_command_trains_resumes_and_tells(text, tmp_path, capsys):
    (tmp_path / "moe.toml").write_text(SETTINGS.format(paths=text, folder=tmp_path / "run"))
    chosen = [str(tmp_path / "moe.toml"), "experts.slots=5", "run.threads=1"]
    assert main(["train", "moe", *chosen]) == 0
    assert main(["train", "moe", *chosen, "--resume", "run.steps=6"]) == 0
    said = capsys.readouterr()
    assert "survival" in said.out
    assert "metrics.jsonl" in said.out
    assert "training: 6/6 loss" in said.err
    assert [line["step"] for line in read_lines(str(tmp_path / "run" / "metrics.jsonl"))] == list(range(6))


def test_arguments_that_nobody_knows_are_refused(tmp_path, capsys):
    for odd in ("--rang=2", "twice"):
        with pytest.raises(SystemExit):
            main(["train", "moe", str(tmp_path / "moe.toml"), "--resume", "run.steps=6", odd])
        assert f"unrecognized arguments: {odd}" in capsys.readouterr().err


@pytest.mark.skipif(not LONG, reason="make test-long runs it")
def test_ranks_run_as_processes(text, tmp_path):
    """They train as one process with as many slots does."""
    (tmp_path / "moe.toml").write_text(SETTINGS.format(paths=text, folder=tmp_path / "two"))
    ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*ranks, "-m", "cedar", "train", "moe", str(tmp_path / "moe.toml")]
    done = subprocess.run(command, capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr.decode()
    two = read_lines(str(tmp_path / "two" / "metrics.jsonl"))
    chosen = config.load(str(tmp_path / "moe.toml"), Options, ["experts.slots=8", f"run.folder={tmp_path / 'one'}"])
    for a, b in zip(two, read_lines(run(chosen, quiet=True)), strict=True):
        assert [layer["counts"] for layer in a["layers"]] == [layer["counts"] for layer in b["layers"]]
        assert abs(a["loss"] - b["loss"]) < 1e-5


def test_a_run_is_served_to_who_asks(text, tmp_path):
    trainer = Trainer(settings(text, tmp_path, serve="127.0.0.1:0"))
    trainer.train_step()
    assert trainer.batches.loader.url is not None
    with urllib.request.urlopen(trainer.batches.loader.url, timeout=60) as answer:
        assert json.load(answer)["deliveries"] == 1
    trainer.close()
