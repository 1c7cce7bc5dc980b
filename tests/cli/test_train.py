"""``cedar simulate``: tables or JSON of all that is simulated, and what cannot be."""

from __future__ import annotations

import json
import sys

import pytest

from cedar.cli import main
from cedar.core.packages import library
from tests.simulate.toy_job import EXAMPLES, report


def test_the_command_prints_all_that_it_simulates(capsys, tmp_path):
    path = report(tmp_path / "report.json")
    grid = ["pipeline.stages=2", "pipeline.replicas=2", "pipeline.micro_batches=4", "run.draws=2", "run.hours=1"]
    times = ["times.forward=0.1", "times.backward_input=0.1", "times.backward_weight=0.1"]
    assert main(["simulate", str(EXAMPLES / "pipeline.toml"), *grid, *times, "--against", path]) == 0
    said = capsys.readouterr().out
    for word in ("rows per second", "oobleck", "10 min", "10 h", "moevement", "throughput left", "median off by"):
        assert word in said
    assert main(["simulate", str(EXAMPLES / "pipeline.toml"), *grid, *times, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == 2 * 4 * 4
    assert len(found["survivals"]) == 3 * 4


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ('run.systems=["slurm"]', "there is no system 'slurm'"),
        ("times.backward_weight=[0.1]", "times have 1 values for 4 stages"),
        ("times.forward={deviation=1}", "deviation is 1"),
        ("links.bandwidth=0", "bandwidth is 0"),
        ("failures.mtbf=[0]", "mtbf is (0"),
        ("pipeline.stage=3", "did you mean 'stages'"),
    ],
)
def test_what_cannot_be_simulated_is_told_in_a_line(capsys, change, told):
    assert main(["simulate", str(EXAMPLES / "pipeline.toml"), change]) == 1
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("name", ["dlrm", "moe", "resilient"])
def test_training_without_torch_names_the_extra(name, monkeypatch, capsys):
    """It was a ModuleNotFoundError."""
    monkeypatch.setitem(sys.modules, "torch", None)
    library.cache_clear()
    assert main(["train", name, "none.toml"]) == 1
    said = capsys.readouterr().err
    assert "cedar train needs torch" in said
    assert "pip install 'cedar-data[torch]'" in said
    library.cache_clear()


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import json\nraise KeyError('nothing')", "data.pipeline 'my_rows:rows' raised KeyError: 'nothing'"),
        ("def rows(): raise OSError('the disk')", "data.pipeline 'my_rows:rows' raised OSError: the disk"),
        ("rows = 3", "data.pipeline 'my_rows:rows' is a int"),
        ("rows = none", "raised NameError"),
    ],
)
def test_a_pipeline_of_the_current_folder_is_imported(code, told, tmp_path, monkeypatch, capsys):
    """It was found only with torchrun, and an error in it was a traceback."""
    pytest.importorskip("torch")
    (tmp_path / "my_rows.py").write_text(code)
    (tmp_path / "dlrm.toml").write_text('features = []\n[data]\npipeline = "my_rows:rows"\ndense = ["x"]\nbatch = 2\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    monkeypatch.delitem(sys.modules, "my_rows", raising=False)
    assert main(["train", "dlrm", "dlrm.toml", "run.device=cpu"]) == 1
    assert told in capsys.readouterr().err
