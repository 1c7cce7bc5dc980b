"""Schedules of torch: worked by as by ours, or refused by line."""

from __future__ import annotations

import re

import pytest
import torch

from cedar.trainers.resilient.planner import Problem, from_torch, plan
from cedar.trainers.resilient.schedule import COMPUTING, ScheduleError, Worker
from tests.trainers.resilient.planner.toy_torch import BI, FUSED, B, F, W, written
from tests.trainers.resilient.toy_grid import once

SPLIT = [
    [(0, F, 0), (0, F, 1), (0, F, 2), (0, BI, 0), (0, W, 0), (0, BI, 1), (0, W, 1), (0, BI, 2), (0, W, 2)],
    [None, (1, F, 0), (1, BI, 0), (1, F, 1), (1, BI, 1), (1, W, 0), (1, F, 2), (1, BI, 2), (1, W, 1), (1, W, 2)],
]


@pytest.mark.parametrize("ranks", [FUSED, SPLIT])
def test_a_schedule_of_torch_gives_the_bits_of_ours(tmp_path, ranks) -> None:
    problem = Problem(2, 2, 3, memory=3, tied=(0, 1), mode="sync")
    made = from_torch(written(tmp_path / "torch.csv", ranks), problem)
    kinds = [(done.kind, done.micro_batch) for done in made.schedule.work[Worker(1, 0)] if done.kind in COMPUTING]
    names = {F: "F", B: "B", BI: "B_INPUT", W: "B_WEIGHT"}
    assert kinds == [(names[action[1]], action[2]) for action in ranks[1] if action is not None]
    (theirs, _), (ours, _) = once(made.schedule), once(plan(problem).schedule)
    for worker, result in ours.items():
        assert torch.equal(theirs[worker].gradient, result.gradient)
        assert theirs[worker].losses == result.losses


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0F0,0B0\n", "is for 1 ranks"),
        ("0F0,0B0\n0F0,1B0\n", "rank 1: '0F0' is not a F, B, I or W of stage 1"),
        ("0F0,0SEND_F0,0B0\n1F0,1B0\n", "'0SEND_F0' is not a F"),
        ("0F0,0B0\n1F0\n", "rank 1: B or B_INPUT does not occur exactly once for each of 1"),
        ("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n", "rank 0: F does not occur exactly once for each of 1"),
        ("0B0,0F0\n1F0,1B0\n", "invalid schedule"),
    ],
)
def test_what_is_no_schedule_for_a_run_is_told(tmp_path, text, told) -> None:
    path = tmp_path / "torch.csv"
    path.write_text(text)
    with pytest.raises(ScheduleError, match=re.escape(told)):
        from_torch(str(path), Problem(2, 2, 1))
    with pytest.raises(ScheduleError, match="cannot be read"):
        from_torch(str(tmp_path / "none.csv"), Problem(2, 2, 1))
