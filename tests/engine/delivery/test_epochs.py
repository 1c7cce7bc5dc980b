"""Where a loader stands: in the loop, after a break, and where a state says."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from cedar import PipelineError
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
