"""What a step tells of each layer, and the table of it."""

from __future__ import annotations

import io
from dataclasses import asdict

import pytest
from rich.console import Console

from cedar.trainers.moe.metrics import layer_columns, popularity, table
from cedar.trainers.moe.trainer import Trainer
from tests.trainers.moe.toy_text import options, write_text


def trained(group, options):
    trainer = Trainer(options, group)
    record = trainer.train_step()
    trainer.close()
    return asdict(record)


def test_a_run_tells_what_gradients_send(crew, tmp_path):
    line = crew.run(trained, options(write_text(tmp_path / "text.txt"), slots=5), ranks=2)[0]
    assert line["layers"][0]["sent"]["gradients"] == 6 * 2 * 8 * 10 * 8 // 2  # one of five experts is on both ranks
    lines = Console(file=io.StringIO(), width=120)
    lines.print(table([line]))
    assert any("gradients, kB" in row and "3.8" in row for row in lines.file.getvalue().splitlines())


def test_popularity_is_one_where_experts_are_alike_and_nothing_where_there_is_one():
    assert popularity([3, 3, 3, 3]) == pytest.approx((1.0, 1.0))
    assert popularity([0, 8, 0, 0]) == (0.0, 4.0)
    assert popularity([6, 2]) == pytest.approx((0.8112781, 1.5))  # of 3/4 and 1/4, in bits
    assert popularity([0, 0]) == popularity([5]) == (1.0, 1.0)


def line(step, survival, replicas, **more):
    layer = {
        "name": "block0", "survival": survival, "entropy": 0.5, "peak": 2.0, "replicas": replicas, "moved": step,
        "sent": {"tokens": 4000}, "seconds": {"experts": 0.002, "routing": 0.001},
    }  # fmt: skip
    plain = {"scale": 1.0, "skipped": False, "held_out": None, "seconds": 0.01, "loss": 2.0}
    return plain | {"layers": [layer], "dense": {"gradients": 3000}} | more


def test_columns_are_means_over_steps_and_what_the_last_one_holds():
    lines = [line(0, 0.5, (4, 4)), line(1, 1.0, (6, 2), scale=0.5, held_out=1.25)]
    columns = layer_columns(lines)
    assert columns["block0"] == ["0.750", "0.500", "0.500", "2.00", "2 to 6", "0.50", "4.0", "0.0", "0.0", "3.0"]
    assert columns["dense"] == [""] * 6 + ["0.0", "3.0", "0.0", ""]
    told = table(lines).caption
    assert "2 steps, 10 ms each; 1 clipped, 0 skipped" in told
    assert "loss 2.0000 over the last 2, 1.2500 on held-out rows" in told


def test_a_step_whose_loss_is_not_finite_makes_the_mean_nan():
    assert "loss nan over the last 2" in table([line(0, 0.5, (4, 4), loss=None), line(1, 1.0, (6, 2))]).caption


def test_a_held_out_loss_that_is_not_finite_is_told():
    """That of an earlier step was shown beside it."""
    lines = [line(0, 0.5, (4, 4), held_out=1.25), line(1, 1.0, (6, 2), loss=None)]
    assert "loss nan over the last 2, nan on held-out rows" in table(lines).caption
