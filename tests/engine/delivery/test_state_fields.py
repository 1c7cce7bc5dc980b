"""The fields of a state: whole as it was saved, refused by name where someone changed one."""

from __future__ import annotations

import copy
from itertools import islice
from typing import Any

import pytest

import cedar
from benchmarks.tampered import PIPELINES
from cedar.core.errors import ResumeError
from cedar.engine.delivery.state import seal
from cedar.engine.delivery.state_fields import fault_of


def saved(name: str, taken: int) -> tuple[cedar.Pipeline, dict[str, Any]]:
    pipeline = PIPELINES[name]()
    with pipeline.loader(executor="inline", plan="off", seed=3) as loader:
        for _ in islice(iter(loader), taken):
            pass
        return pipeline, loader.state_dict()


def resumed(pipeline: cedar.Pipeline, state: Any) -> int:
    with pipeline.loader(executor="inline", plan="off", seed=3) as loader:
        loader.load_state_dict(state)
        return len(list(loader))


@pytest.mark.heavy
@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("taken", [0, 1, 3])
def test_a_state_as_it_was_saved_is_whole(name: str, taken: int) -> None:
    pipeline, state = saved(name, taken)
    assert fault_of(state) is None
    whole = resumed(pipeline, saved(name, 0)[1])
    assert resumed(pipeline, state) == whole - taken


WRONG: dict[str, Any] = {
    "step": "3", "epoch": -1, "world": -1, "rank": 5, "sources": "x", "skipped": {"a": None}, "begun": {}, "seed": True,
    "open": {"0": {"history": [], "deal": None}}, "data": 2.5, "steps": [], "seen": 1 << 70,
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_field_that_holds_what_it_cannot(name: str) -> None:
    pipeline, state = saved("batch", 2)
    changed = {k: v for k, v in state.items() if k != "check"} | {name: WRONG[name]}
    with pytest.raises(ResumeError, match=f"the state is damaged: '{name}'|of another seed") as caught:
        resumed(pipeline, seal(changed))
    assert caught.value.site is not None
    assert caught.value.site.file == __file__


@pytest.mark.parametrize(
    "below", [7, [], [[0, 0]], [[[0, 0], 0, 0], 0], [[[0], 0], 0], [[["0", 0], 0], 0], [[[-1, 0], 0], 0]]
)
def test_a_position_of_no_stream_of_the_pipeline(below: Any) -> None:
    pipeline, state = saved("filter", 2)
    changed = copy.deepcopy({k: v for k, v in state.items() if k != "check"})
    changed["open"]["0"]["deal"] = [[1, below, 0], 0]
    with pytest.raises(ResumeError):
        resumed(pipeline, seal(changed))


def test_a_rank_that_is_no_run_s_distance_ahead() -> None:
    """It must not be counted unit by unit."""
    pipeline, state = saved("filter", 2)
    changed = copy.deepcopy({k: v for k, v in state.items() if k != "check"})
    changed["open"]["0"] |= {"history": [[2, 1, [0, 1 << 50]]], "deal": None}
    with pytest.raises(ResumeError, match="units more than another"):
        resumed(pipeline, seal(changed))
