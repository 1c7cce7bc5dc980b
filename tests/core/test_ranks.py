"""Which rank this is: who says so, and what two say differently."""

from __future__ import annotations

import os
import sys
import types
from typing import Any

import numpy as np
import pytest

from cedar.core.errors import PipelineError, Site
from cedar.core.ranks import Rank, find_rank, refuse_workers

SITE = Site("user.py", 3)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("RANK", "WORLD_SIZE", "SLURM_", "OMPI_", "PMI_", "TORCHELASTIC_")):
            monkeypatch.delenv(name)


def test_arguments_come_before_the_environment_and_that_before_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_rank(None, None, False, SITE) == Rank(0, 1, "default")
    assert find_rank(np.int64(1), 2, False, SITE) == Rank(1, 2, "arguments")
    monkeypatch.setenv("RANK", "3")
    assert find_rank(3, 4, False, SITE) == Rank(3, 4, "arguments"), "half of it does not matter next to them"
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
        (2, 2, {}, "rank 2 of 2 .from arguments.: a rank is between"),
        (-1, 2, {}, "a rank is between"),
        (0, None, {}, "give both or neither"),
        (0.0, 2, {}, "are not integers"),
        (True, 2, {}, "are not integers"),
        (None, None, {"RANK": "0"}, "RANK='0' is set in the environment and WORLD_SIZE is not"),
        (None, None, {"WORLD_SIZE": "2"}, "WORLD_SIZE='2' is set in the environment and RANK is not"),
        (None, None, {"RANK": "a", "WORLD_SIZE": "2"}, "are not integers"),
    ],
)
def test_what_is_no_rank_is_refused(
    rank: Any, world: Any, environment: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PipelineError, match=says):
        find_rank(rank, world, False, SITE)


STEP = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8"}
MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}
TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "job"}


@pytest.mark.parametrize(
    ("environment", "rank", "world", "origin"),
    [
        (STEP | {"SLURM_NTASKS": "16"}, 3, 8, "SLURM_PROCID and SLURM_STEP_NUM_TASKS"),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8"}, 3, 8, "SLURM_PROCID and SLURM_STEP_NUM_TASKS"),
        ({"SLURM_STEP_ID": "12", "SLURM_PROCID": "3", "SLURM_NTASKS": "8"}, 3, 8, "SLURM_PROCID and SLURM_NTASKS"),
        (STEP | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "8"}, 0, 1, "SLURM_"),  # --pty bash
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, 0, 1, "default"),  # a batch script
        (STEP | {"SLURM_STEP_ID": "4294967291"}, 0, 1, "default"),  # and where it says so
        (STEP | {"SLURM_STEP_ID": "4294967290"}, 0, 1, "default"),  # an interactive shell
        ({"SLURM_NTASKS": "8", "SLURM_JOB_ID": "1"}, 0, 1, "default"),  # salloc
        (MPI, 2, 4, "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE"),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, 1, 2, "PMI_RANK and PMI_SIZE"),
        (MPI | STEP, 2, 4, "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE"),  # mpirun starts its daemons by srun
        (TORCHRUN | STEP, 5, 8, "RANK and WORLD_SIZE"),  # which numbers as it likes
        ({"RANK": "5", "WORLD_SIZE": "16"} | STEP, 5, 16, "RANK and WORLD_SIZE"),  # two ranks a task
        ({"WORLD_SIZE": "8"} | STEP, 3, 8, "SLURM_PROCID and SLURM_STEP_NUM_TASKS"),
        ({"RANK": "3"} | STEP, 3, 8, "SLURM_PROCID and SLURM_STEP_NUM_TASKS"),
    ],
)
def test_what_launchers_set(
    environment: dict[str, str], rank: int, world: int, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = find_rank(None, None, False, SITE)
    assert (found.rank, found.world) == (rank, world)
    assert found.origin.startswith(origin)
    if "RANK" not in environment and "WORLD_SIZE" not in environment:
        assert find_rank(1, 3, False, SITE) == Rank(1, 3, "arguments"), "no matter how many this process stands for"


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "3"}, ["SLURM_PROCID='3'", "SLURM_STEP_NUM_TASKS is not"]),
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"}, ["SLURM_STEP_NUM_TASKS='1'", "SLURM_PROCID is not"]),
        (STEP | {"SLURM_PROCID": "8"}, ["rank 8 of 8", "SLURM_PROCID and SLURM_STEP_NUM_TASKS"]),
        (STEP | {"SLURM_STEP_NUM_TASKS": "8(x2)"}, ["SLURM_STEP_NUM_TASKS='8(x2)'", "integers"]),
        ({"OMPI_COMM_WORLD_RANK": "2"}, ["OMPI_COMM_WORLD_RANK='2'", "OMPI_COMM_WORLD_SIZE is not"]),
        ({"PMI_SIZE": "2"}, ["PMI_SIZE='2'", "PMI_RANK is not"]),
        ({"PMI_RANK": "x", "PMI_SIZE": "2"}, ["PMI_RANK='x'", "integers"]),
        (MPI | {"OMPI_COMM_WORLD_RANK": "-1"}, ["rank -1 of 4", "OMPI_COMM_WORLD_RANK"]),
        ({"WORLD_SIZE": "1"} | STEP, ["WORLD_SIZE='1'", "RANK is not", "3 of 8", "SLURM_PROCID"]),
        ({"RANK": "0"} | STEP, ["RANK='0'", "WORLD_SIZE is not", "3 of 8", "SLURM_PROCID"]),
        ({"RANK": "0", "WORLD_SIZE": "8"} | STEP, ["set twice", "RANK and WORLD_SIZE", "SLURM_PROCID"]),
        ({"RANK": "0", "WORLD_SIZE": "4"} | MPI, ["set twice", "RANK and WORLD_SIZE", "OMPI_COMM_WORLD_RANK"]),
    ],
)
def test_halves_and_contradictions_of_launchers_are_refused_by_the_names_of_variables(
    environment: dict[str, str], names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PipelineError) as caught:
        find_rank(None, None, False, SITE)
    assert all(name in str(caught.value) for name in names)


def test_workers_of_a_dataloader_are_refused_unless_arguments_say_their_part(monkeypatch: pytest.MonkeyPatch) -> None:
    worker: Any = types.SimpleNamespace(id=1, num_workers=2)
    monkeypatch.setitem(sys.modules, "torch.utils.data", types.SimpleNamespace(get_worker_info=lambda: worker))
    with pytest.raises(PipelineError, match="worker 1 of 2 of a torch DataLoader"):
        refuse_workers(Rank(0, 1, "default"), SITE)
    refuse_workers(Rank(0, 1, "arguments"), SITE)
    worker.num_workers = 1
    refuse_workers(Rank(0, 1, "default"), SITE)
