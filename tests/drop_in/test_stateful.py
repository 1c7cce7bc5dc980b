"""The loader next to torchdata's StatefulDataLoader: the same loop, the same points at which both can be saved."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import cedar

torch: Any = pytest.importorskip("torch")
Dataset: Any = torch.utils.data.Dataset
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")


class Rows(Dataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": index, "y": torch.full((2,), float(index))}


def theirs() -> Any:
    return stateful.StatefulDataLoader(Rows(), batch_size=4, drop_last=True)


def ours() -> cedar.Loader:
    return cedar.from_items(Rows()).batch(4, last="drop").loader(format="torch")


def plain(batches: Any) -> list[Any]:
    return [(batch["x"].tolist(), batch["y"].tolist()) for batch in batches]


def test_batches_lengths_and_states_are_those_of_a_stateful_data_loader() -> None:
    here, there = ours(), theirs()
    assert len(here) == len(there) == 7
    assert plain(here) == plain(there)
    for step in (0, 1, 5, 7):
        followed = []
        for make in (ours, theirs):
            loader = make()
            stream = iter(loader)
            for _ in range(step):
                next(stream)
            state = loader.state_dict()
            again = make()
            again.load_state_dict(state)
            followed.append([plain(stream), plain(again), len(plain(again))])
        if step == 7:  # after the last batch theirs gives an epoch without a batch first; ours is at the next
            assert followed[1][1] == []
            followed[1][1] = plain(theirs())
        assert followed[0] == followed[1], step


def test_a_loop_that_counts_its_batches_gets_the_next_epoch() -> None:
    """As with a DataLoader: who takes len(loader) batches need not ask for one more."""
    loader = cedar.from_items(Rows()).shuffle().batch(4).loader(format="torch")
    known = cedar.from_items(Rows()).shuffle().batch(4).loader(format="torch")
    for _ in range(3):
        stream = iter(loader)
        assert plain(next(stream) for _ in range(len(loader))) == plain(known)
    counted = cedar.from_items(Rows()).shuffle().batch(4).loader(format="torch", steps=5)
    steps = cedar.from_items(Rows()).shuffle().batch(4).loader(format="torch", steps=5)
    for _ in range(3):
        stream = iter(counted)
        assert plain(next(stream) for _ in range(5)) == plain(steps)


def test_the_sampler_tells_the_epoch_and_keeps_a_place_in_it() -> None:
    loader = cedar.from_items(Rows()).shuffle().batch(4).loader(format="torch")
    first = plain(loader)
    second = plain(loader)
    loader.sampler.set_epoch(0)
    assert plain(loader) == first
    stream = iter(loader)
    next(stream)
    state = loader.state_dict()
    loader.load_state_dict(state)
    loader.sampler.set_epoch(1)
    assert plain(loader) == second[1:]
