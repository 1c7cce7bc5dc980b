"""The fields of a state: whole as it was saved, refused by name where someone changed one."""

from __future__ import annotations

import base64
import copy
import json
import random
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from benchmarks.tampered import PIPELINES
from cedar import col
from cedar.core.errors import ResumeError
from cedar.engine.delivery.state import VERSION, merge, part_of, seal, validated
from cedar.engine.delivery.state_fields import SMALL, fault_of, packed, unpacked
from cedar.engine.streams.lanes import LaneState
from cedar.plan import graph


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


# ---- packed states ---------------------------------------------------------------------------------------------------


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 1 << 62) | st.text(max_size=5), lambda inner: st.lists(inner)
)


@pytest.mark.heavy
@given(st.dictionaries(st.text(max_size=4), JSON), st.lists(st.integers(-1, 1 << 60)), st.sampled_from([0, 3000]))
def test_what_is_unpacked_is_what_was_packed(inside: dict[str, Any], numbers: list[int], padding: int) -> None:
    state = {
        "cedar": VERSION,
        "open": inside | {"n": numbers},
        "begun": inside,
        "seen": padding,
        "files": ["x" * padding],
    }
    found = packed(state)
    assert json.loads(json.dumps(found)) == found
    assert ("packed" in found) == (len(json.dumps(state)) > SMALL)
    assert unpacked(found) | {"cedar": VERSION} == state


def frame(text: bytes) -> str:
    return base64.b64encode(pa.Codec("zstd").compress(text, asbytes=True)).decode()


def of(text: bytes, length: int | None = None) -> list[Any]:
    return [len(text) if length is None else length, frame(text)]


WHOLE = json.dumps({"open": {}, "begun": {"step": 0, "data": 0, "open": {}}}).encode()
BROKEN: dict[str, Any] = {
    "nothing": None, "text": "x", "number": 3, "short": [1], "long": [1, "x", 2], "flag": [True, frame(b"1")],
    "no text": [4, 4], "negative": [-1, frame(WHOLE)], "empty": [0, ""], "no base64": [4, "????"],
    "padding": [4, "abc"], "surrogate": [4, "\ud800"], "no frame": [4, base64.b64encode(b"nonsense").decode()],
    "cut": [len(WHOLE), frame(WHOLE)[:-8]], "more": of(WHOLE, len(WHOLE) - 1), "less": of(WHOLE, len(WHOLE) + 1),
    "bomb": of(b"0" * (1 << 20), 1 << 40), "a small bomb": of(b" " * (1 << 20), 10), "no JSON": of(b"{"),
    "not UTF-8": of(b'"\xff"'), "a list": of(b"[]"), "a field": of(b'{"open": {}}'),
    "others": of(b'{"open": {}, "begun": {}, "seed": 1}'), "deep": of(b"[" * 100_000),
    "wrong inside": of(WHOLE[:-2] + b": 7}}"),
    "numbers of none": of(b'{"open": NaN, "begun": 1e999}'), "odd": of(b'{"open": [], "begun": {}}'),
}  # fmt: skip


@pytest.mark.heavy
@pytest.mark.parametrize("name", BROKEN)
def test_what_is_malformed_is_refused_by_name(name: str) -> None:
    pipeline = cedar.from_items([{"x": i} for i in range(20)]).batch(4)
    state = pipeline.loader(executor="inline").state_dict()
    rest = {key: value for key, value in state.items() if key not in ("open", "begun", "check")}
    assert len(run_from(pipeline, seal(rest | {"packed": of(WHOLE)}))) == 5
    with pytest.raises(ResumeError, match="damaged") as caught:
        run_from(pipeline, seal(rest | {"packed": BROKEN[name]}))
    assert caught.value.site is not None
    assert caught.value.site.file == __file__


def test_fields_beside_their_packed_form_are_refused() -> None:
    pipeline = cedar.from_items([{"x": i} for i in range(20)]).batch(4)
    state = {k: v for k, v in pipeline.loader(executor="inline").state_dict().items() if k != "check"}
    with pytest.raises(ResumeError, match="'packed' has invalid content"):
        run_from(pipeline, seal(state | {"packed": of(WHOLE)}))


def run_from(pipeline: cedar.Pipeline, state: Any) -> list[Any]:
    with pipeline.loader(executor="inline", plan="off") as loader:
        loader.load_state_dict(state)
        return list(loader)


@pytest.mark.heavy
def test_a_packed_state_that_was_edited_is_refused() -> None:
    pipeline = many()
    state = saved_after(pipeline, 5)
    assert "packed" in state
    state["packed"][1] = packed(unpacked(state) | {"begun": {"step": 1, "data": 0, "open": {}}})["packed"][1]
    with pytest.raises(ResumeError, match="damaged|edited"):
        run_from(pipeline, state)


def many(sources: int = 300) -> cedar.Pipeline:
    """A mix of sources whose counts are not known, so that a state holds a position for each."""
    parts = [cedar.from_items([{"x": 3 * i}, {"x": 3 * i + 1}]).filter(col("x") >= 0) for i in range(sources)]
    return cedar.mix([(part, 1.0) for part in parts], stop="all").batch(16, last="keep")


def saved_after(pipeline: cedar.Pipeline, steps: int) -> dict[str, Any]:
    with pipeline.loader(executor="inline", plan="off") as loader:
        for _ in islice(loader, steps):
            pass
        return loader.state_dict()


@pytest.mark.heavy
def test_a_state_of_a_thousand_sources_is_small_and_goes_on() -> None:
    pipeline = many(1000)
    with pipeline.loader(executor="inline", plan="off") as loader:
        batches = iter(loader)
        for _ in range(40):
            next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
        then = next(batches)["x"].tolist()
    assert len(json.dumps(unpacked(state))) > 3 * 4096
    assert len(json.dumps(state)) < 4096
    with pipeline.loader(executor="inline", plan="off") as loader:
        loader.load_state_dict(state)
        assert next(iter(loader))["x"].tolist() == then


@pytest.mark.heavy
def test_a_state_of_the_plain_form_still_loads() -> None:
    """However large it is."""
    pipeline = many()
    state = saved_after(pipeline, 20)
    plain = {name: value for name, value in unpacked(state).items() if name != "check"} | {"cedar": VERSION}
    plain |= {"check": graph.digest(plain)}
    assert len(json.dumps(plain)) > 4096
    assert [b["x"].tolist() for b in run_from(pipeline, plain)] == [b["x"].tolist() for b in run_from(pipeline, state)]


def progress(state: dict[str, Any], draw: random.Random, lanes: bool) -> dict[str, Any]:
    """The state of a rank some steps later: how far it is differs by rank where it has lanes."""
    state = copy.deepcopy(state)
    state["step"] += 20
    entry = state["open"]["0"]
    if lanes:
        held = [LaneState(*lane) for lane in entry["lanes"]]
        at = next((i for i, lane in enumerate(held) if lane.stop is None and lane.turns == 1), len(held) - 1)
        splits = max(1, round(draw.gauss(12, 3)))
        entry["lanes"] = [
            lane.finished([[40, None, None], 0]) if i < at
            else lane.after([[20, [splits - 1, draw.randrange(900)], 300], 0], splits) if i == at
            else list(lane)
            for i, lane in enumerate(held)
        ]  # fmt: skip
    else:
        entry["deal"] = [[20, None, None], 0]
    return state


@pytest.mark.heavy
@pytest.mark.parametrize("lanes", [False, True], ids=["known", "unknown"])
def test_states_of_a_thousand_ranks_are_small_after_three_changes(lanes: bool) -> None:
    worlds = [1024, 768, 1000, 1024]
    draw = random.Random(0)
    rows = cedar.from_items([{"x": i} for i in range(64)])
    pipeline = (rows.filter(col("x") > 3) if lanes else rows).shuffle(seed=1).batch(4, last="keep")
    first = validated(pipeline.loader(executor="inline").state_dict(), None)
    states = []
    for rank in range(worlds[0]):
        lane = [list(LaneState.first(rank, worlds[0], 0))] if lanes else None
        states.append(
            first | {"rank": rank, "world": worlds[0], "open": {"0": {"history": [], "deal": None, "lanes": lane}}}
        )
    for world in worlds[1:]:
        whole = merge([progress(state, draw, lanes) for state in states], 1, None)
        states = []
        for rank in range(0, world, 1 if world != worlds[-1] else 64):
            state = part_of(whole, rank, world) | {"rank": rank, "world": world}
            begun = {name: copy.deepcopy(state[name]) for name in ("step", "data", "open")}
            states.append(state | {"begun": begun})
    sealed = [seal(progress(state, draw, lanes)) for state in states]
    assert validated(sealed[0], None)["begun"] == json.loads(json.dumps(states[0]["begun"]))
    plain = len(json.dumps(states[0]))
    assert fault_of(states[0] | {"check": ""}) is None
    assert plain > 3 * 4096
    assert max(len(json.dumps(state)) for state in sealed) < 4096
