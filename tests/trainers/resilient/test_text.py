"""What a run's failures cost: recoveries by their parts, and a picture."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import torch

from cedar.cli import train
from cedar.core.errors import CedarError
from cedar.trainers.common import config
from cedar.trainers.resilient import text
from cedar.trainers.resilient.options import DataOptions, ModelOptions, Options, RunOptions
from cedar.trainers.resilient.pipeline import Workers
from cedar.trainers.resilient.text import next_token, text_pipeline


@pytest.mark.heavy
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
    (one,) = text.recoveries(record)
    found = [one.detection, one.decision, one.rebuild, one.plan, one.redo, one.redo_all]
    assert found == pytest.approx([0.1, 0.1, 0.2, 0.05, 0.5, 0.7])
    assert one.kept == 6
    pytest.importorskip("matplotlib")
    text.plot(record, str(tmp_path / "plot.png"))
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_the_example_runs_with_the_defaults_of_the_command() -> None:
    """Its batch could not be cut into 2 x 4 micro-batches."""
    parser = argparse.ArgumentParser()
    train.add(parser.add_subparsers())
    example = str(Path(__file__).parents[3] / "examples" / "resilient.toml")
    chosen = parser.parse_args(["train", "resilient", example])
    options = config.load(chosen.config, Options, chosen.changes)
    for stages, replicas in ((chosen.stages, chosen.replicas), (3, 3)):  # and as its head says
        assert text_pipeline(options, stages, Workers(replicas)).rows > 0


def test_each_place_is_to_tell_the_token_after_it() -> None:
    inputs, targets = next_token({"tokens": torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.int32)})
    assert (inputs.tolist(), targets.tolist()) == ([[1, 2], [4, 5]], [[2, 3], [5, 6]])
    assert inputs.dtype == targets.dtype == torch.int64


@pytest.mark.parametrize("tied", [True, False])
def test_stages_hold_the_whole_model_and_no_layer_twice(tied: bool) -> None:
    made = Options(DataOptions("none.txt", 8, 8), ModelOptions(layers=3, width=8, heads=2, tied=tied), run=RunOptions())
    whole = dict(text_pipeline(made, 1, Workers(1)).module(0).named_parameters())
    pipeline = text_pipeline(made, 3, Workers(1))
    names = [name for stage in range(3) for name, _ in pipeline.module(stage).named_parameters()]
    assert set(names) == set(whole)
    assert len(names) - len(whole) == tied  # the table of tokens is at both ends
    assert (pipeline.tied == "tokens.weight") is tied
    with pytest.raises(CedarError, match="3 layers cannot be split into 4 stages"):
        text_pipeline(made, 4, Workers(1))
