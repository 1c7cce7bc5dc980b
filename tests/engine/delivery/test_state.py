"""States: what they are, what they refuse, and what they let pass with a warning."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import ResumeError, col
from cedar.engine.delivery.state import seal
from tests.toy_runs import run


def table(n: int = 40) -> pa.Table:
    return pa.table({"x": pa.array(range(n), pa.int64()), "l": [list(range(i % 4)) for i in range(n)]})


def rows() -> cedar.Pipeline:
    return cedar.from_arrow(table())


def written(folder: Path, n: int = 40) -> str:
    folder.mkdir(exist_ok=True)
    pq.write_table(table(n), folder / "a.parquet", row_group_size=8)
    pq.write_table(table(n), folder / "b.parquet", row_group_size=8)
    return f"{folder}/*.parquet"


def state_of(p: cedar.Pipeline, stop: int = 2, **options: Any) -> dict[str, Any]:
    return run(p.loader(**options), stop)[1]


def refused(p: cedar.Pipeline, state: Any, says: str, **options: Any) -> None:
    """One ResumeError at this file, with a hint what to do; and the loader is as it was."""
    loader = p.loader(**options)
    with pytest.raises(ResumeError, match=says) as caught:
        loader.load_state_dict(state)
    assert caught.value.site is not None
    assert caught.value.site.file == __file__
    assert caught.value.fix
    assert run(loader)[0] == run(p.loader(**options))[0]


def test_a_state_is_small_plain_json() -> None:
    p = rows().shuffle(window=7).filter(lambda x: x % 5 > 0, "x")
    p = cedar.mix([(p, 1.0), (p.map(lambda x: x + 1, "x"), 1.0)], stop="all")
    p = cedar.zip(p, rows().select(y="x").repeat(3)).take(70).shuffle(window=9)
    p = p.map(lambda x, y: x + y, "x", "y", into="z").batch(4)
    loader = p.loader(rank=0, world=2)
    for _ in loader:
        text = json.dumps(loader.state_dict())
        assert len(text) < 4096
        assert json.loads(text) == loader.state_dict()


def test_a_state_also_loads_from_its_text() -> None:
    p = rows().batch(4)
    loader = p.loader()
    loader.load_state_dict(json.dumps(state_of(p)))  # type: ignore[arg-type]
    assert len(run(loader)[0]) == 8


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("other", "differs"),
    [
        (lambda: rows().batch(5), "operator 2 was shuffle, and is batch"),
        (lambda: rows().shuffle().batch(4), "operator 2, shuffle, had different parameters"),
        (lambda: rows().shuffle(seed=2, window=3).batch(4), "operator 2, shuffle, had different parameters"),
        (lambda: rows().shuffle(seed=2).batch(4, last="keep"), "operator 3, batch, had different parameters"),
        (lambda: rows().shuffle(seed=2).batch(4).take(3), "operator 4 was missing, and is take"),
        (lambda: rows().filter(col("x") > 3).shuffle().batch(4), "operator 2 was shuffle, and is filter"),
        (lambda: cedar.concat(rows(), rows()).shuffle().batch(4), "operator 2 was shuffle, and is read"),
    ],
)
def test_a_state_of_another_pipeline_is_refused(other: Any, differs: str) -> None:
    state = state_of(rows().shuffle(seed=2).batch(4))
    refused(other(), state, f"another pipeline: {differs}")
    del state["operators"], state["check"]  # as of earlier versions
    refused(other(), seal(state), "another pipeline: its operators, their connections or their parameters differ")


def test_a_seed_may_have_any_size() -> None:
    p = rows().shuffle().batch(4)
    seed = 1 << 100
    first = p.loader(seed=seed)
    taken = next(iter(first))["x"].tolist()
    again = p.loader(seed=seed)
    again.load_state_dict(first.state_dict())
    whole = [batch["x"].tolist() for batch in p.loader(seed=seed)]
    assert [taken, *(batch["x"].tolist() for batch in again)] == whole


def test_seeds_slices_and_steps_must_be_those_of_the_state() -> None:
    p = rows().shuffle().batch(4)
    refused(p, state_of(p), "another seed", seed=1)
    refused(p, state_of(p), "another split_batches", split_batches=True)
    refused(p, state_of(p), "another steps", steps=3)
    refused(p, state_of(p, steps=3), "another steps", steps=4)


def test_changed_data_is_refused_moved_data_is_not(tmp_path: Path) -> None:
    def reading(folder: str) -> cedar.Pipeline:
        return cedar.read_parquet(written(tmp_path / folder)).shuffle().batch(4)

    state = state_of(reading("old"))
    here = reading("elsewhere").loader()
    here.load_state_dict(state)
    assert len(run(here)[0]) == 18
    pq.write_table(table(41), tmp_path / "elsewhere" / "b.parquet", row_group_size=8)
    moved = cedar.read_parquet(f"{tmp_path}/elsewhere/*.parquet").shuffle().batch(4)
    (changed := moved.loader()).load_state_dict(state)
    assert any("other row counts" in note and "b.parquet" in note for note in changed.report().notes)
    (tmp_path / "other").mkdir()
    pq.write_table(table(40), tmp_path / "other" / "c.parquet")
    other = cedar.read_parquet(f"{tmp_path}/other/*.parquet").shuffle().batch(4)
    refused(other, state, "the state is for other files, such as a.parquet")
    many = cedar.from_items([{"x": i} for i in range(72)]).shuffle().batch(4)
    more = cedar.from_items([{"x": i} for i in range(73)]).shuffle().batch(4)
    refused(more, state_of(many), "the data of source 0 changed")


def edits() -> list[Any]:
    def cut(state: Any, name: str) -> Any:
        return {k: v for k, v in state.items() if k != name}

    def deep(state: Any) -> Any:
        state["open"]["0"]["deal"][0][0] += 1
        return state

    return [
        lambda s: s | {"step": s["step"] + 1},
        lambda s: s | {"epoch": 7},
        lambda s: s | {"open": {}},
        deep,
        lambda s: cut(s, "open"),
        lambda s: cut(s, "check"),
        lambda s: s | {"step": "2"},
        lambda s: s | {"cedar": "1"},
        lambda s: s | {"more": 1},
    ]


@pytest.mark.parametrize("edit", edits())
def test_an_edited_state_is_refused(edit: Any) -> None:
    p = rows().shuffle().batch(4)
    state = state_of(p)
    refused(p, edit(copy.deepcopy(state)), "damaged|edited|version")


@pytest.mark.parametrize("state", [None, 3, "{", "[]", {}, [], {"epoch": 1}, [{}], object()])
def test_what_is_no_state_is_refused(state: Any) -> None:
    refused(rows().batch(4), state, "expected a state|not valid JSON|not JSON|empty")


def test_a_state_of_another_version_is_refused() -> None:
    p = rows().batch(4)
    refused(p, state_of(p) | {"cedar": 99, "new": 1}, "version 99")
    for version in (1, 2):  # they shuffled by the numbers of files in the listing
        refused(
            p, state_of(p) | {"cedar": version}, f"version {version}, of an earlier cedar, which shuffled in another"
        )


def test_ranks_need_their_own_states_or_all_of_them() -> None:
    p = rows().shuffle().batch(4)
    states = [state_of(p, rank=r, world=3) for r in range(3)]
    refused(p, states[:2], "give this rank's own state, or the list", rank=0, world=2)
    refused(p, [states[0], states[0], states[1]], "rank 0 of 3 appears twice among the given states", rank=0, world=2)
    refused(p, [*states[:2], states[2] | {"epoch": 1}], "edited|damaged", rank=0, world=2)
    later = p.loader(rank=2, world=3)
    run(later)
    _, ahead = run(later, 1)
    refused(p, [*states[:2], ahead], "differ in 'epoch'", rank=0, world=2)
    loader = p.loader(rank=2, world=3)
    loader.load_state_dict(states)  # a rank finds its own
    assert run(loader)[0] == run(p.loader(rank=2, world=3))[0][2:]


def test_one_ranks_state_restores_all_where_counts_are_known(tmp_path: Path) -> None:
    """Trainers save on rank 0 alone. Ranks that drift, and rows in any order say nothing of others."""
    p = rows().shuffle().batch(4)
    whole = [run(p.loader(rank=rank, world=3))[0] for rank in range(3)]
    for saver in range(3):
        state = state_of(p, rank=saver, world=3)
        for rank in range(3):
            loader = p.loader(rank=rank, world=3)
            loader.load_state_dict(state)
            assert run(loader)[0] == whole[rank][2:]
            assert loader.state_dict()["rank"] == rank
    lanes = cedar.read_parquet(written(tmp_path / "d")).filter(col("x") >= 0).batch(4, last="keep")
    changed = state_of(lanes, rank=0, world=2)
    changed["begun"]["open"] = changed["open"]  # its ranks changed in this epoch
    del changed["check"]
    refused(lanes, seal(changed), "the state is of rank 0 of 2, and the position of rank 1 does not", rank=1, world=2)
    apart = rows().batch(3, last="keep")
    says = r"the state is of rank 0 of 2, and the position of rank \d does not follow"
    for p, options in ((apart, {"steps": 3}), (rows().batch(4), {"order": "any"})):
        state = state_of(p, rank=0, world=2, **options)
        for rank, world in ((1, 2), (1, 3)):
            refused(p, state, says, rank=rank, world=world, **options)
    sliced = rows().filter(col("x") >= 0).batch(4)  # each rank has its slice of every batch
    loader = sliced.loader(rank=1, world=2, split_batches=True)
    loader.load_state_dict(state_of(sliced, rank=0, world=2, split_batches=True))
    assert run(loader)[0] == run(sliced.loader(rank=1, world=2, split_batches=True))[0][2:]


@pytest.mark.parametrize(("ranks", "world"), [([0, 0], 1), ([0, 1, 1], 2), ([0, 0], 2)])
def test_a_rank_gives_one_state(ranks: list[int], world: int) -> None:
    p = rows().batch(4)
    states = [run(p.loader(rank=rank, world=world), step)[1] for step, rank in enumerate(ranks, 1)]
    refused(p, states, rf"rank {ranks[-1]} of {world} appears twice among the given states")


@pytest.mark.parametrize("lanes", [False, True])
def test_ranks_that_dealt_an_epoch_in_two_ways_are_refused(tmp_path: Path, lanes: bool) -> None:
    p = cedar.read_parquet(written(tmp_path / "d"))
    p = p.filter(lambda x: x >= 0, "x").batch(4, last="keep") if lanes else p.batch(4)
    states = [state_of(p, 1, rank=r, world=2) for r in range(2)]
    changed = copy.deepcopy(states[0])
    for entry in changed["open"].values():
        assert (entry["lanes"] is not None) is lanes
        entry["lanes"] = None if lanes else []
    del changed["check"]
    refused(p, [seal(changed), states[1]], "some by batches, others by lanes", rank=0, world=3)


def test_a_mended_function_is_a_warning_and_the_rows_go_on() -> None:
    def build(fn: Any) -> cedar.Pipeline:
        return rows().map(fn, "x", into="y", dtype=int).shuffle().batch(4)

    wrong, right = build(lambda x: x + 1), build(lambda x: x + 2)
    got, state = run(wrong.loader(), 3)
    loader = right.loader()
    with pytest.warns(UserWarning, match="the code of a function") as caught:
        loader.load_state_dict(state)
    assert caught[0].filename == __file__
    rest, _ = run(loader)
    assert [x for b in got + rest for x in b["x"]] == [x for b in run(wrong.loader())[0] for x in b["x"]]
    assert all(y == x + 2 for b in rest for x, y in zip(b["x"], b["y"], strict=True))


def test_a_changed_expression_is_a_warning_too() -> None:
    state = state_of(rows().with_columns(y=col("x") + 1).batch(4))
    loader = rows().with_columns(y=col("x") + 2).batch(4).loader()
    with pytest.warns(UserWarning, match="expression"):
        loader.load_state_dict(state)


def test_the_same_code_in_another_process_or_place_is_no_change() -> None:
    def make() -> cedar.Pipeline:
        bound = 3

        def shifted(x: int) -> int:
            return x + bound

        return rows().map(shifted, "x").filter(col("x") > 3).map(str, "x", into="s").batch(4)

    loader = make().loader(executor="inline")
    loader.load_state_dict(state_of(make()))
    assert len(run(loader)[0]) == 8
