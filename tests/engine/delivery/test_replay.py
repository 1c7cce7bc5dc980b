"""Batches that are rebuilt, of this rank and of others."""

from __future__ import annotations

import pytest

import cedar
from cedar import PipelineError
from tests.engine.delivery.few_rows import in_batches, rows, xs
from tests.toy_runs import plain, run


def test_another_ranks_batch_is_refused_where_its_place_is_unknown():
    loaders = [in_batches(10, last="keep").loader(steps=2, rank=rank, world=2) for rank in range(2)]
    for epoch in range(3):
        got = [xs(loader) for loader in loaders]
        if epoch == 0:
            assert (
                in_batches(10, last="keep").loader(steps=2, rank=0, world=2).read(0, rank=1)["x"].tolist() == got[1][0]
            )
    with pytest.raises(cedar.PipelineError, match="only rank 1 knows"):
        loaders[0].read(0, rank=1)


PIPELINES = {
    "known": lambda: rows(31).shuffle(window=9).batch(3, last="keep"),
    "unknown": lambda: rows(31).filter(lambda x: x % 4 > 0, "x").shuffle(window=9).batch(3, last="keep"),
    "padded": lambda: rows(31).drop("l").shuffle().batch(4, last="pad"),
    "rows": lambda: rows(11).shuffle(),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_any_rank_reads_what_another_rank_got(name: str) -> None:
    p = PIPELINES[name]()
    got = [[plain(b) for b in p.loader(rank=r, world=3)] for r in range(3)]
    with p.loader(rank=1, world=3) as loader:
        for step in (2, 0, 1, 1, 3):
            for rank in range(3):
                if step < len(got[rank]):
                    assert plain(loader.read(step, rank)) == got[rank][step]
        assert plain(loader.read(0)) == got[1][0]
        assert [plain(b) for b in loader] == got[1], "reading does not disturb the loop"


def test_reading_again_after_resumes_and_changes_of_world() -> None:
    p = PIPELINES["known"]()
    states = [run(p.loader(rank=r, world=2), 2)[1] for r in range(2)]
    rest = []
    for rank in range(3):
        loader = p.loader(rank=rank, world=3)
        loader.load_state_dict(states)
        rest.append([plain(b) for b in loader])
    with p.loader(rank=0, world=3) as loader:
        loader.load_state_dict(states)
        for rank in range(3):
            assert [plain(loader.read(2 + i, rank)) for i in range(len(rest[rank]))] == rest[rank]
        with pytest.raises(PipelineError, match="redistributed"):
            loader.read(1)


def test_reading_with_steps_crosses_epochs_of_the_data() -> None:
    p = rows(10).shuffle().batch(2)
    got = [[plain(b) for b in p.loader(rank=r, world=2, steps=7)] for r in range(2)]
    with p.loader(rank=0, world=2, steps=7) as loader:
        assert [plain(loader.read(i, r)) for r in range(2) for i in range(7)] == got[0] + got[1]
