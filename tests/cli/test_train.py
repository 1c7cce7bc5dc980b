"""``cedar simulate``: tables or JSON of all that is simulated, and what cannot be."""

from __future__ import annotations

import json

import pytest

from cedar.cli import main
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
