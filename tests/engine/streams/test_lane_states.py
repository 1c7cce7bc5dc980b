"""Lanes as states have them: merged, and redistributed when the ranks change."""

from __future__ import annotations

import pytest

from tests.engine.streams.test_lanes import numbers, pairs
from tests.toy_runs import run


@pytest.mark.heavy
def test_no_rank_is_idle_after_a_change_of_worlds() -> None:
    p = numbers(64).filter(lambda x: x > 1, "x").shuffle(seed=1, window=64).batch(8, last="keep")
    states, got = [], []
    for rank in range(4):
        loader = p.loader(rank=rank, world=4, executor="inline")
        part, state = run(loader, 10 + rank)
        got += part
        states.append(state)
    for world in (8, 3):
        after = []
        for rank in range(world):
            loader = p.loader(rank=rank, world=world, executor="inline")
            loader.load_state_dict(states)
            part, state = run(loader, 3)
            assert len(part) == 3
            got += part
            after.append(state)
        states = after
    lengths = []
    for rank in range(5):
        loader = p.loader(rank=rank, world=5, executor="inline")
        loader.load_state_dict(states)
        part, _ = run(loader)
        got += part
        lengths.append(sum(len(batch["id"]) for batch in part))
    assert pairs(got) == pairs(run(p.loader(executor="inline"))[0])
    assert max(lengths) - min(lengths) <= 3 * 32, lengths  # windows that were begun stay whole
