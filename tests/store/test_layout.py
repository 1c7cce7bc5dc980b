"""Budget(layout=): the rows of splits, written in another layout; rows, order and states are the same before, during
and after.
"""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import Budget, col
from tests.store.toy_stored import entries

GROUPS = 12  # splits


@pytest.fixture
def files(tmp_path: Path) -> str:
    (tmp_path / "in").mkdir()
    for i in range(3):
        lists = [list(range(j % 5)) for j in range(20)]
        table = pa.table({"x": range(i * 20, i * 20 + 20), "y": np.arange(20) / 3, "l": lists})
        pq.write_table(table, tmp_path / "in" / f"{i}.parquet", row_group_size=5)
    return str(tmp_path / "in" / "*.parquet")


def drawn(x: int, rng: Any) -> float:
    return x + float(rng.random())


def build(files: str) -> cedar.Pipeline:
    p = cedar.read_parquet(files).filter(col("x") % 7 != 0).with_columns(y=col("y") * 2)
    return p.map(drawn, "x", into="r", random=True).shuffle(seed=3, window=20).batch(4, last="keep")


def seen(batches: Any) -> list[Any]:
    return [{name: plain(values) for name, values in batch.items()} for batch in batches]


def plain(values: Any) -> Any:
    if isinstance(values, cedar.JaggedTensor):
        return np.asarray(values.values).tolist(), np.asarray(values.offsets).tolist()
    return np.asarray(values).tolist()


@pytest.mark.heavy
@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_the_rows_of_every_epoch_are_the_same(executor: str, files: str, tmp_path: Path):
    with build(files).loader(executor="inline", plan="off") as plain:
        expected = [seen(plain), seen(plain)]
    place = tmp_path / "new"
    for _ in range(2):  # a later run reads what the first one wrote
        with build(files).loader(executor=executor, workers=2, budget=Budget(layout=place)) as loader:
            assert [seen(loader), seen(loader)] == expected
        assert len(entries(place)) == GROUPS
        mark = {path: path.stat().st_mtime_ns for path in entries(place)}
    assert mark == {path: path.stat().st_mtime_ns for path in entries(place)}


def test_the_second_epoch_reads_no_parquet(files: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    budget = Budget(layout=str(tmp_path / "new"))
    with build(files).loader(executor="inline", budget=budget) as loader:
        first = seen(loader)
        monkeypatch.setattr(pq.ParquetFile, "__init__", None)  # any code that opens one fails
        second = seen(loader)
        assert len(first) == len(second)
        assert f"cache: {GROUPS} hit(s), {GROUPS} miss(es)" in " ".join(loader.report().notes)


BUDGETS = [None, "layout"]


@pytest.mark.heavy
@pytest.mark.parametrize(("before", "after"), list(itertools.product(BUDGETS, BUDGETS)))
@pytest.mark.parametrize("gone", [False, True])
def test_states_resume_across_the_change(before: Any, after: Any, gone: bool, files: str, tmp_path: Path):
    place = tmp_path / "new"

    def options(budget: Any) -> dict[str, Any]:
        return {"executor": "inline", "budget": budget and Budget(layout=place)}

    with build(files).loader(executor="inline") as plain:
        whole = [seen(plain), seen(plain)]
    states = []
    for stop in (2, 9):
        with build(files).loader(**options(before)) as loader:
            first = seen(itertools.islice(loader, stop))
            states.append(json.loads(json.dumps(loader.state_dict())))
        assert first == whole[0][:stop]
    if gone:
        shutil.rmtree(place, ignore_errors=True)
    for stop, state in zip((2, 9), states, strict=True):
        with build(files).loader(**options(after)) as loader:
            loader.load_state_dict(state)
            assert [seen(loader), seen(loader)] == [whole[0][stop:], whole[1]]


def test_states_are_the_same_with_and_without(files: str, tmp_path: Path):
    states = []
    for budget in (None, Budget(layout=tmp_path / "new"), Budget(layout=tmp_path / "new")):
        with build(files).loader(executor="inline", budget=budget) as loader:
            for _ in itertools.islice(loader, 5):
                pass
            states.append(loader.state_dict())
    assert states[0] == states[1] == states[2]


def test_a_layout_that_is_removed_while_it_is_read_is_made_again(files: str, tmp_path: Path):
    place = tmp_path / "new"
    with build(files).loader(executor="inline", plan="off") as plain:
        expected = [seen(plain), seen(plain)]
    with build(files).loader(executor="inline", budget=Budget(layout=place)) as loader:
        assert seen(loader) == expected[0]
        batches = iter(loader)
        second = seen(itertools.islice(batches, 3))
        shutil.rmtree(place)
        assert [*second, *seen(batches)] == expected[1]


def test_it_holds_the_columns_that_are_needed_up_to_the_first_random_operator(files: str, tmp_path: Path):
    p = cedar.read_parquet(files).filter(col("x") > 3).with_columns(y=col("y") * 2).shuffle().select("y").batch(4)
    with p.loader(executor="inline", budget=Budget(layout=tmp_path / "new")) as loader:
        list(loader)
        told = [(d.rule, d.what) for d in loader.plan.decisions if d.applied]
    assert ("layout_place", f"layout('{tmp_path}/new'): above with_columns(y)") in told
    kept = [pa.ipc.open_stream(path.read_bytes()).schema for path in entries(tmp_path / "new")]
    assert {len(schema) for schema in kept} == {1}


def test_optimize_layout_does_it_at_once(files: str, tmp_path: Path):
    p = build(files)
    plan = cedar.optimize_layout(p, Budget(layout=tmp_path / "new"), executor="inline")
    assert len(entries(tmp_path / "new")) == GROUPS
    with p.loader(executor="inline") as plain, p.loader(executor="inline", plan=plan) as loader:
        assert seen(plain) == seen(loader)
        assert f"cache: {GROUPS} hit(s), 0 miss(es)" in " ".join(loader.report().notes)
    plan.save(tmp_path / "plan.json")
    assert '"step": "Cache"' in (tmp_path / "plan.json").read_text()  # a plan names no folder
    loaded = cedar.Plan.load(tmp_path / "plan.json", p)
    with p.loader(executor="inline") as plain, p.loader(executor="inline", plan=loaded) as loader:
        assert seen(plain) == seen(loader)


@pytest.mark.parametrize(
    ("make", "budget", "message"),
    [
        (lambda files: build(files), Budget(), "the budget names no folder"),
        (lambda files: cedar.read_parquet(files).repeat().batch(2), Budget(layout="new"), "without end"),
        (lambda files: cedar.from_items([{"x": 1}]), Budget(layout="new"), "there is nothing to lay out"),
        (lambda files: cedar.read_parquet(files).cache("memory"), Budget(layout="new"), "there is nothing to lay out"),
    ],
)
def test_what_cannot_be_laid_out_is_said(make: Any, budget: Budget, message: str, files: str, tmp_path: Path):
    with pytest.raises(cedar.PipelineError, match=message):
        cedar.optimize_layout(make(files), budget)


def test_a_place_where_nothing_can_be_laid_out_is_an_error(files: str, tmp_path: Path):
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(cedar.PipelineError, match="file"):
            cedar.optimize_layout(build(files), Budget(layout=place), executor="inline")
    with pytest.raises(cedar.PipelineError, match="the layout in .* is incomplete: .* is full"):
        cedar.optimize_layout(build(files), Budget(layout=tmp_path / "small", cache=1), executor="inline")


@pytest.mark.parametrize("layout", ["", 3])
def test_a_budget_names_a_place(layout: Any):
    with pytest.raises(cedar.PipelineError, match="names no place"):
        Budget(layout=layout)
