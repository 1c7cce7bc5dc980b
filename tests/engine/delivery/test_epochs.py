"""Where a loader stands: in the loop, after a break, and where a state says."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cedar
from cedar import PipelineError, WorkerError
from cedar.engine.delivery import epochs
from cedar.engine.delivery.epochs import Position, is_unfinished
from tests.engine.delivery.few_rows import rows, xs
from tests.toy_runs import saved


def test_a_break_restarts_the_epoch_a_loaded_state_goes_on() -> None:
    p = rows().shuffle().batch(5)
    loader = p.loader()
    whole = xs(list(p.loader()))
    for batch in loader:
        assert batch["x"].tolist() == whole[0]
        break
    state = saved(loader)
    assert (loader.epoch, state["step"]) == (0, 1)
    assert xs(list(loader)) == whole
    loader.load_state_dict(state)
    assert loader.epoch == 0
    assert xs(list(loader)) == whole[1:]
    assert loader.epoch == 1
    loader.load_state_dict(state)
    for _ in loader:
        break
    assert xs(list(loader)) == whole, "a break after a resume starts the whole epoch again"


@pytest.mark.parametrize("steps", [None, 4])
@pytest.mark.parametrize("told", ["loader", "sampler"])
def test_to_be_told_the_epoch_keeps_a_place_that_was_loaded(told: str, steps: int | None) -> None:
    p = rows().shuffle(seed=1).batch(5)
    with p.loader(steps=steps) as loader:
        epochs = [xs(loader) for _ in range(3)]
        loader.set_epoch(1)
        iterator = iter(loader)
        begun = xs([next(iterator), next(iterator)])
        state = saved(loader)
    assert begun == epochs[1][:2]

    def resumed(*epochs: int) -> list[list[int]]:
        with p.loader(steps=steps) as again:
            again.load_state_dict(state)
            for epoch in epochs:
                (again if told == "loader" else again.sampler).set_epoch(epoch)
            return xs(again)

    assert resumed(1) == resumed(1, 1) == epochs[1][2:]
    assert resumed(2) == epochs[2], "another epoch is begun"
    assert resumed(0, 1) == epochs[1], "and what was loaded is forgotten then"


def test_to_be_told_the_same_epoch_after_a_break_starts_it_where_it_began() -> None:
    p = rows().filter(lambda x: x >= 0, "x").batch(3)  # counts are unknown, so the position follows from earlier epochs
    with p.loader(steps=2, executor="inline") as loader:
        epochs = [xs(loader) for _ in range(2)]
    with p.loader(steps=2, executor="inline") as loader:
        assert xs(loader) == epochs[0]
        next(iter(loader))
        loader.set_epoch(1)
        assert xs(loader) == epochs[1]


@pytest.mark.parametrize("epoch", ["1", 1.5, None, True, -1])
def test_what_is_no_epoch_is_refused_and_leaves_the_loader_as_it_was(epoch: Any) -> None:
    loader = rows().batch(4).loader()
    before = loader.state_dict()
    with pytest.raises(PipelineError, match="set_epoch"):
        loader.set_epoch(epoch)
    assert loader.state_dict() == before


def test_an_epoch_of_numpy_can_be_saved() -> None:
    loader = rows().shuffle(seed=1).batch(4).loader()
    loader.set_epoch(np.int64(3))  # type: ignore[arg-type]
    assert json.loads(json.dumps(loader.state_dict()))["epoch"] == 3


@pytest.mark.parametrize("rank", [0, 1])
def test_an_epoch_ends_although_the_steps_of_rank_0_cannot_be_counted(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def fails(*_: Any) -> Any:
        asked.append(rank)
        raise WorkerError("the service does not answer")

    p = cedar.mix([(rows(8), 0.5), (rows(8), 0.5)], stop="all").batch(4, last="keep")
    with p.loader(rank=rank, world=2, executor="inline") as loader:
        monkeypatch.setattr(epochs, "DataEpoch", fails)
        assert len(list(loader)) == 2
        assert loader.epoch == 1
    assert len(asked) == rank, "rank 0 needs only its own steps"


# ---- a position, and the one of the next epoch -----------------------------------------------------------------------


AT_5: dict[str, Any] = {"history": [], "deal": [[5, None, None], 0], "lanes": None}


def test_the_next_epoch_begins_with_its_own_data() -> None:
    position = Position(3, 3, {"2": AT_5, "3": AT_5}, step=5, earlier_steps=7).next(steps=False)
    assert (position.epoch, position.data, position.step, position.earlier_steps) == (4, 4, 0, 12)
    assert position.open == {"3": AT_5}, "other ranks may still be in that epoch"
    assert position.begun == {"step": 0, "data": 4, "open": {}}
    assert not position.placed


def test_with_steps_the_next_epoch_continues_in_the_data() -> None:
    position = Position(3, 1, {"1": AT_5}, step=5).next(steps=True)
    assert (position.epoch, position.data, position.step) == (4, 1, 0)
    assert position.begun == {"step": 0, "data": 1, "open": {"1": AT_5}}
    assert position.placed


def test_entries_of_long_finished_epochs_are_dropped() -> None:
    position = Position(9, 9, {str(epoch): AT_5 for epoch in range(9)})
    ended: Any = SimpleNamespace(epoch=9, closed=lambda _: AT_5)
    position.close(ended)
    assert list(position.open) == [str(epoch) for epoch in range(2, 10)]


def test_batches_left_over_are_seen_in_an_entry() -> None:
    assert not is_unfinished(AT_5)
    assert is_unfinished(AT_5 | {"before": {"epoch": 2, "entry": AT_5}})
    assert not Position(4, 4, {"3": AT_5}).has_leftovers
    assert Position(4, 4, {"4": AT_5 | {"before": {"epoch": 3, "entry": AT_5}}}).has_leftovers
