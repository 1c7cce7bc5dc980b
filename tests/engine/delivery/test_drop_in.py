"""What code written for a DataLoader asks of a loader."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import cloudpickle
import pytest

import cedar
from cedar import PipelineError
from tests.engine.delivery.few_rows import rows


@pytest.mark.parametrize("away", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_loader_is_not_sent_anywhere(away: Any) -> None:
    with pytest.raises(PipelineError, match="send the pipeline"):
        away(rows().batch(4).loader())
    assert pickle.loads(pickle.dumps(rows().batch(4))).loader()
    local = rows().map(lambda x: x + 1, "x").batch(4)
    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickle.dumps(local)
    with pytest.raises(PipelineError, match="lambdas .* use cloudpickle"):
        pickle.dumps(local.loader())
    assert len(list(pickle.loads(cloudpickle.dumps(local)).loader())) == 5


def test_each_ranks_state_has_a_name_of_its_own() -> None:
    p = cedar.from_items([{"x": i} for i in range(24)]).batch(2)
    loaders = [p.loader(rank=rank, world=2, executor="inline") for rank in range(2)]
    got = [next(iter(loader))["x"].tolist() for loader in loaders]
    kept = {name: text for loader in loaders for name, text in loader.stateful().state_dict().items()}
    assert sorted(kept) == ["rank 0 of 2", "rank 1 of 2"]
    alone = p.loader(rank=0, world=1, executor="inline")
    assert sorted(alone.stateful(world=2).state_dict()) == sorted(kept), "names to be loaded over"
    alone.stateful(world=2).load_state_dict(kept)
    rest = [x for batch in alone for x in batch["x"].tolist()]
    assert sorted([*rest, *got[0], *got[1]]) == list(range(24))


def test_an_epoch_that_a_trainer_tells_of_is_begun_once() -> None:
    loader = cedar.from_items([{"x": i} for i in range(6)]).shuffle().batch(2).loader(executor="inline")
    whole = [batch["x"].tolist() for batch in loader]
    loader.set_epoch(0)
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())
    loader.sampler.set_epoch(0)  # where it stands
    assert [batch["x"].tolist() for batch in loader] == whole[1:]
    loader.sampler.set_epoch(0)
    assert [batch["x"].tolist() for batch in loader] == whole
    assert loader.batch_sampler is None


def test_a_loader_has_no_items_and_says_what_to_use() -> None:
    loader = rows().batch(4).loader()
    with pytest.raises(PipelineError, match="a loader has no items") as caught:
        loader[0]
    assert isinstance(caught.value, TypeError)
    assert "in place of a DataLoader" in (caught.value.fix or "")
    assert str(caught.value.site).startswith(__file__)
    with pytest.raises(PipelineError, match="not Loader"):
        cedar.from_items(loader)
