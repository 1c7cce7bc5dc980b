"""A loader that continues as another rank: what it asks, and what is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import cedar
from tests.engine.delivery.test_elastic import Job, ids, numbers
from tests.toy_runs import run


def test_new_ranks_alone_begin_at_the_beginning(tmp_path: Path) -> None:
    p = numbers(6).batch(4)
    loaders = [p.loader(rank=0, world=1, agree=tmp_path, executor="inline") for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda rank: loaders[rank].reshard(rank, 2), range(2)))
    assert sorted(i for loader in loaders for b in run(loader)[0] for i in b["id"]) == ids(6)


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    p = numbers(6).batch(2)
    loader = p.loader(rank=0, world=2, agree=tmp_path, executor="inline", timeout=0.3)
    alone = p.loader(rank=0, world=2, executor="inline")
    next(iter(loader))
    with pytest.raises(cedar.PipelineError, match="rank must be between 0 and world - 1"):
        loader.reshard(2, 2)
    with pytest.raises(cedar.PipelineError, match="cannot communicate to agree on a position"):
        alone.reshard(0, 2)
    for rank in (0, 1):
        with pytest.raises(cedar.WorkerError, match=rf"rank\(s\) {1 - rank} of 2 did not call reshard"):
            loader.reshard(rank, 2)
    job = Job(p, tmp_path, 2)
    job.step()
    job._next(0)
    with pytest.raises(cedar.ResumeError, match="the ranks are at different steps"):
        job.change([0, 1], 2)
    assert job.step() == 2  # nothing was redistributed, and they continue


@pytest.mark.parametrize("balanced", [False, True])
def test_ranks_that_change_after_the_last_batch_go_on_with_the_next_epoch(balanced: bool, tmp_path: Path) -> None:
    p = cedar.from_items([{"n": i} for i in range(40)]).shuffle(seed=1).batch(5, last="keep")
    p = p.balance("n") if balanced else p
    with p.loader(rank=0, world=2, agree=str(tmp_path), executor="inline") as loader:
        steps = iter(loader)
        assert len([next(steps) for _ in range(4)]) == 4
        loader.reshard(0, 1)
        assert list(steps) == []
        assert (loader.epoch, len(list(loader))) == (1, 8)
