"""Runs: the command, what it writes, and what it refuses before the first step."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cedar.cli import main
from cedar.core.errors import CedarError
from cedar.trainers.common.files import read_lines
from cedar.trainers.common.group import Group
from cedar.trainers.common.run import run as run_trainer
from cedar.trainers.dlrm.options import RunOptions
from cedar.trainers.dlrm.trainer import Trainer
from cedar.trainers.resilient.options import RunOptions as ResilientRunOptions
from tests.trainers.dlrm.toy_clicks import options

run = partial(run_trainer, Trainer)
CONFIG = """
features = [{ column = "item", rows = 60 }, { column = "hist", rows = 60, table = "item", pooling = "attention" }]

[data]
paths = "LOG"
dense = ["d0"]
batch = 64
session = "session"
dedup = [["hist"]]
held_out = 128
executor = "inline"

[model]
width = 4

[run]
folder = "FOLDER"
steps = 6
save_every = 3
threads = 1
device = "cpu"
"""


@pytest.fixture
def config(log, tmp_path):
    path = tmp_path / "dlrm.toml"
    path.write_text(CONFIG.replace("LOG", log).replace("FOLDER", str(tmp_path / "run")))
    return str(path)


def test_a_resume_without_a_checkpoint_is_told(config, tmp_path, capsys):
    """The run began again in silence, and removed the metrics."""
    assert main(["train", "dlrm", config, "run.steps=1", "--resume"]) == 0
    assert f"no checkpoint in {tmp_path / 'run'}: the run starts at step 0" in " ".join(capsys.readouterr().out.split())
    assert main(["train", "dlrm", config, "run.steps=2", "--resume"]) == 0
    assert "no checkpoint" not in capsys.readouterr().out
    assert RunOptions().save_every == 100  # without a setting, a run saves before its end


def test_the_command_trains_and_goes_on(config, tmp_path, capsys):
    assert main(["train", "dlrm", config]) == 0
    told = capsys.readouterr()
    assert "held out: AUC" in told.out
    assert "training: 6/6 loss" in told.err
    for choice in (
        "steps: 0 to 6",
        "device: cpu (as asked), float32",
        "torch threads on each: 1 (as asked)",
        "tables: ",
    ):
        assert choice in told.out
    assert "rows/s, waited" in told.err
    lines = read_lines(str(tmp_path / "run" / "metrics.jsonl"))
    assert [line["step"] for line in lines] == list(range(6))
    assert lines[-1]["held_out"]["rows"] == 128
    assert sorted(os.listdir(tmp_path / "run" / "checkpoints")) == ["step-00000003", "step-00000006"]
    assert main(["train", "dlrm", config, "run.steps=8", "--resume"]) == 0
    again = read_lines(str(tmp_path / "run" / "metrics.jsonl"))
    assert again[:6] == lines
    assert len(again) == 8


def test_a_folder_with_another_run_s_files_is_refused(config, log, tmp_path, capsys):
    """Two runs were mixed in silence, and the older model was resumed."""
    chosen = options(log, run={"folder": str(tmp_path / "run"), "steps": 1})
    run(chosen, Group(), quiet=True)
    before = {name: (tmp_path / "run" / name).read_bytes() for name in ("metrics.jsonl", "run.json")}
    for again in (chosen, options(log, run={"folder": str(tmp_path / "run"), "steps": 2})):
        with pytest.raises(CedarError, match="holds the files of another run: checkpoints, metrics.jsonl, run.json"):
            run(again, Group(), quiet=True)
    (tmp_path / "run" / "run.json").write_text('{"trainer": "moe"}')
    with pytest.raises(CedarError, match="holds a run of the trainer 'moe', but this one is 'dlrm'"):
        run(chosen, Group(), quiet=True, resume=True)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before["metrics.jsonl"]
    assert os.listdir(tmp_path / "run" / "checkpoints") == ["step-00000001"]


def test_what_is_no_number_is_null_in_the_metrics_and_each_line_is_handed_over(log, tmp_path):
    """One held-out row has no AUC; NaN is not JSON."""
    chosen = options(log, data={"held_out": 1}, run={"folder": str(tmp_path), "steps": 2, "evaluate_every": 1})
    seen = []
    path = run(chosen, Group(), quiet=True, on_metrics=seen.append)
    assert seen == read_lines(path)
    assert [line["held_out"]["auc"] for line in seen] == [None, None]
    assert "NaN" not in Path(path).read_text(encoding="utf-8")


@pytest.mark.heavy
def test_the_command_trains_on_ranks_of_torchrun(config, tmp_path):
    ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*ranks, "-m", "cedar", "train", "dlrm", config, "run.steps=2"], check=True, timeout=100)
    lines = read_lines(str(tmp_path / "run" / "metrics.jsonl"))
    assert len(lines) == 2
    assert lines[0]["sent"]["ids"] > 0


def test_a_run_without_steps_is_an_epoch(log, tmp_path):
    path = run(options(log, run={"folder": str(tmp_path), "steps": 0}), Group(), quiet=True)
    assert len(read_lines(path)) == 14


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"features": [{"column": "item", "rows": 50}]}, "row group 0: the feature 'item' has the id"),
        ({"features": [{"column": "hist", "rows": 50}]}, "row group 0: the feature 'hist' has the id"),
        ({"features": [{"column": "items", "rows": 50}]}, "the data has no column 'items'"),
        ({"tables": {"memory": 1000}}, "does not fit"),
        ({"data": {"batch": 100_000}, "run": {"steps": 0}}, "no batch of 100000 rows"),
        ({"data": {"held_out": 5000}}, "data.held_out is 5000, but there are 1024 rows"),
        ({"data": {"paths": (), "pipeline": "json:none"}}, "'json:none' cannot be imported"),
    ],
)
def test_what_can_be_known_is_told_before_the_first_step(log, tmp_path, changes, told):
    with pytest.raises(CedarError) as failed:
        run(options(log, **({"run": {"folder": str(tmp_path)}} | changes)), Group(), quiet=True)
    assert told in str(failed.value)


def test_negative_ids_are_found_in_footers_or_batches(tmp_path):
    for statistics in (True, False):
        path = str(tmp_path / f"{statistics}.parquet")
        rows = {"session": [1] * 8, "item": [1, 2, 3, -4] * 2, "label": [0, 1] * 4}
        pq.write_table(pa.table(rows), path, write_statistics=statistics)
        chosen = options(
            path, features=[{"column": "item", "rows": 9}],
            data={"dense": [], "log": [], "held_out": 0, "batch": 8, "dedup": "off"},
        )  # fmt: skip
        with pytest.raises(CedarError, match="'item' has the id -4"):
            Trainer(chosen, Group()).train_step()


def test_the_file_of_metrics_is_json(log, tmp_path):
    path = run(options(log, run={"folder": str(tmp_path), "steps": 2, "evaluate_every": 1}), Group(), quiet=True)
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    assert all(line["held_out"]["rows"] == 128 and line["waited"] <= line["seconds"] for line in lines)


def test_a_run_is_served_to_who_asks(config, capsys):
    """The loader of a training run, and a run continues whether it is served or not."""
    assert main(["train", "dlrm", config, "run.steps=3"]) == 0
    assert "cedar top" not in capsys.readouterr().err
    assert main(["train", "dlrm", config, "--resume", "run.serve=127.0.0.1:0"]) == 0
    assert "rank 0 of 1: cedar top 'http://127.0.0.1:" in capsys.readouterr().err
    with pytest.raises(ValueError, match="not served"):
        ResilientRunOptions(serve="127.0.0.1:0")
