"""Real workers: those that are killed, stopped or loop forever change no bit of what the others come to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cedar.core.errors import CedarError
from cedar.trainers.common import config
from cedar.trainers.common.files import read_lines
from cedar.trainers.resilient.options import Options
from cedar.trainers.resilient.pipeline import Workers
from cedar.trainers.resilient.text import text_pipeline
from tests.trainers.resilient.toy_processes import TAKES_MINUTES, check, describe, ended, reference, started

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.waits,
    pytest.mark.timeout(400),
    pytest.mark.skipif(sys.platform != "linux", reason="workers are forked, and die with their supervisor on Linux"),
]


def test_a_kill_changes_no_bit(file: Path, tmp_path: Path) -> None:
    changes = ["run.steps=8", "run.save_every=0"]
    out = ended(started(file, *changes, "--chaos", "kill=3@step3:6"))
    record = describe(tmp_path)
    check(record, reference(file, changes), workers=3)
    assert "signal 9" in " ".join(event["why"] for event in record["events"])
    assert "recoveries" in out
    assert "steps: 0 to 8; 2 stages of 2 workers" in out
    assert [line["step"] for line in read_lines(str(tmp_path / "run" / "metrics.jsonl"))] == list(range(8))
    assert (tmp_path / "run" / "plans" / "plan_0.json").exists()


@TAKES_MINUTES
def test_kills_a_lost_stage_and_an_endless_loop_change_no_bit(file: Path, tmp_path: Path) -> None:
    """A kill, a rejoin from a peer, both workers of a stage killed: it goes back to a checkpoint alone; then a loop."""
    changes = ["run.steps=24", "run.save_every=5", "run.pace=0.004"]
    chaos = "kill=3@step3:6, rejoin@step5, kill=0@step12:2, kill=1@step12:2, loop=2@step18:3"
    out = ended(started(file, *changes, "--chaos", chaos))
    record = describe(tmp_path)
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
    again = describe(tmp_path)
    assert [step for step, _, _ in again["steps"]] == [24, 25]
    assert len({one["digest"] for one in again["ended"].values()}) == 1

    with pytest.raises(CedarError, match="holds the files of another run"):
        text_pipeline(config.load(str(file), Options, changes), 2, Workers(2)).train()


SHORT = """
import sys
import torch
from torch import nn
from cedar.trainers import PipelineOptions, ResilientPipeline, RunOptions, Workers

def data(step):
    rows = 3 if step == 2 else 4
    return torch.zeros(rows, 2), torch.zeros(rows, 1)

ResilientPipeline(
    [nn.Linear(2, 3), nn.Linear(3, 1)], nn.functional.mse_loss, data, Workers(replicas=1), batch=4,
    pipeline=PipelineOptions(micro_batches=2), run=RunOptions(folder=sys.argv[1], steps=4),
).train(quiet=True)
"""


def test_a_batch_of_other_rows_ends_the_run_at_once(tmp_path: Path) -> None:
    """Stages were blamed for it, after five more tries."""
    command = [sys.executable, "-c", SHORT, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert "CedarError: data gave 3 rows of inputs at step 2, and the batch is 4" in done.stderr
    assert "should" not in done.stderr
    assert "worker" not in done.stderr


def test_a_stage_that_changes_a_buffer_ends_the_run_at_the_first_batch(tmp_path: Path) -> None:
    """Workers were started again six times, and the last error did not say why."""
    script = SHORT.replace("nn.Linear(2, 3)", "nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))")
    command = [sys.executable, "-c", script, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert "CedarError: stage 0 changes a buffer while it computes" in done.stderr


def test_an_error_of_on_metrics_is_not_taken_for_a_lost_store(tmp_path: Path) -> None:
    script = SHORT.replace("step == 2", "False").replace("quiet=True", "quiet=True, on_metrics=fail")
    script = script.replace("def data", "def fail(line):\n    raise RuntimeError\n\ndef data")
    command = [sys.executable, "-c", script, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.stderr.endswith("in fail\nRuntimeError\n")
