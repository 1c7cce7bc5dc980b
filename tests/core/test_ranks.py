"""Which rank this is: who says so, and what two say differently."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest

from cedar.core.errors import PipelineError, Site
from cedar.core.ranks import Rank, find_rank, refuse_workers, slurm_step

SITE = Site("user.py", 3)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)


def test_arguments_come_before_the_environment_and_that_before_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_rank(None, None, False, SITE) == Rank(0, 1, "default")
    assert find_rank(np.int64(1), 2, False, SITE) == Rank(1, 2, "arguments")
    monkeypatch.setenv("RANK", "3")
    assert find_rank(3, 4, False, SITE) == Rank(3, 4, "arguments"), "half of it does not matter beside them"
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert find_rank(None, None, False, SITE) == Rank(3, 4, "RANK and WORLD_SIZE")
    assert find_rank(0, 2, True, SITE) == Rank(0, 2, "arguments"), "a group inside the job"
    with pytest.raises(PipelineError, match="0 of 2 by arguments, 3 of 4 by RANK and WORLD_SIZE") as caught:
        find_rank(0, 2, False, SITE)
    assert "subgroup=True" in str(caught.value.fix)
    assert caught.value.site == SITE


@pytest.mark.parametrize(
    ("rank", "world", "environment", "says"),
    [
        (2, 2, {}, "rank 2 of 2 .from arguments.: a rank lies between"),
        (-1, 2, {}, "a rank lies between"),
        (0, None, {}, "give both or neither"),
        (0.0, 2, {}, "are not whole numbers"),
        (True, 2, {}, "are not whole numbers"),
        (None, None, {"RANK": "0"}, "RANK='0' is set in the environment and WORLD_SIZE is not"),
        (None, None, {"WORLD_SIZE": "2"}, "WORLD_SIZE='2' is set in the environment and RANK is not"),
        (None, None, {"RANK": "a", "WORLD_SIZE": "2"}, "are not whole numbers"),
    ],
)
def test_what_is_no_rank_is_refused(
    rank: Any, world: Any, environment: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PipelineError, match=says):
        find_rank(rank, world, False, SITE)


def test_tasks_of_slurm_count_within_a_step_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "1")
    assert slurm_step() is None
    for tasks, found in (("2", Rank(1, 2, "SLURM_PROCID and SLURM_STEP_NUM_TASKS")), ("1", None), ("x", None)):
        monkeypatch.setenv("SLURM_STEP_NUM_TASKS", tasks)
        assert slurm_step() == found


def test_workers_of_a_dataloader_are_refused_unless_arguments_say_their_part(monkeypatch: pytest.MonkeyPatch) -> None:
    worker: Any = types.SimpleNamespace(id=1, num_workers=2)
    monkeypatch.setitem(sys.modules, "torch.utils.data", types.SimpleNamespace(get_worker_info=lambda: worker))
    with pytest.raises(PipelineError, match="worker 1 of 2 of a torch DataLoader"):
        refuse_workers(Rank(0, 1, "default"), SITE)
    refuse_workers(Rank(0, 1, "arguments"), SITE)
    worker.num_workers = 1
    refuse_workers(Rank(0, 1, "default"), SITE)
