"""Whose a loader is, as a service hears of it."""

from __future__ import annotations

import socket

import pytest

from cedar.cluster.dask.signals import job_and_rank, job_of_ranks

pytestmark = [pytest.mark.heavy, pytest.mark.waits]


def test_a_job_has_the_name_that_the_configuration_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from dask import config

    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with config.set({"cedar.job": "night"}):
        assert job_of_ranks() == "night"
        assert job_and_rank() == ("night", 2)


def test_without_a_name_it_is_the_script_and_of_several_machines_one_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")  # and no number of ranks: the loader was told which it is
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    job, rank = job_and_rank()
    assert job == f"{job_of_ranks()}@{socket.gethostname()}"
    assert rank == 0
