"""Bad input for the optimizer: it ends in the rows of the pipeline as written, or in a CedarError that says all."""

from __future__ import annotations

import gc
import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import CedarError, PipelineError, PlanError, SourceError, col
from cedar.operators.algebra import pointwise, spatial
from cedar.optimizer import planner as optimizer
from cedar.profile import Machine, Profile
from tests.toy_runs import plain

pytestmark = pytest.mark.timeout(90)

FILES, ROWS = 24, 250
RARE = FILES * ROWS // 2 + 7  # the one row where things go wrong, far from any sample


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("plans")
    for number in range(FILES):
        ids = range(number * ROWS, (number + 1) * ROWS)
        words = [None if i == RARE else "word"[: i % 5] for i in ids]
        table = pa.table({"id": ids, "x": [i % 97 for i in ids], "u": pa.array(words, pa.string())})
        pq.write_table(table, folder / f"{number:02}.parquet", row_group_size=50)
    return str(folder / "*.parquet")


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans take over for any gain, so that a test sees them."""
    monkeypatch.setattr(optimizer, "_GAIN", 0.0)


def work(x: int) -> int:
    return sum(i * x % 7 for i in range(60))


def third(x: int) -> bool:
    return x % 3 == 0


def run(pipeline: cedar.Pipeline, plan: Any, **options: Any) -> tuple[list[Any], cedar.Loader]:
    """What a loader gives, as it compares; plans that are being made are waited for."""
    found = []
    with pipeline.loader(plan=plan, workers=2, **options) as loader:
        for value in loader:
            found.append({name: plain(column) for name, column in value.items()})
            thread = loader._plans._thread
            if thread is not None and options.get("executor") != "inline":
                thread.join(5)
    return found, loader


def same(make: Callable[[], cedar.Pipeline], **options: Any) -> cedar.Loader:
    """The rows are those of the pipeline as written; the loader that ran optimized."""
    wanted, _ = run(make(), "off", **options)
    found, loader = run(make(), "auto", **options)
    assert found == wanted
    return loader


def refusals(loader: cedar.Loader) -> str:
    return "\n".join(str(d) for d in loader.plan.decisions if not d.applied)


def applied(loader: cedar.Loader) -> set[str]:
    return {d.rule for d in loader.plan.decisions if d.applied}


def read(files: str) -> cedar.Pipeline:
    return cedar.read_parquet(files)


def end(pipeline: cedar.Pipeline) -> cedar.Pipeline:
    """Many small windows, so that a plan finds a place to take over."""
    return pipeline.shuffle(window=500).batch(16, last="keep")


# ---- functions that lie ----------------------------------------------------------------------------------------------


def test_a_function_that_reads_what_another_one_leaves_in_a_global(files: str, eager: None) -> None:
    seen: dict[int, int] = {}

    def puts(i: int) -> int:
        seen[i] = i
        return i

    def takes(i: int) -> int:
        return seen.pop(i, -1)

    def make() -> cedar.Pipeline:
        seen.clear()
        p = read(files).map(puts, "id", into="a", dtype=int).map(takes, "id", into="b", dtype=int)
        return end(p.map(work, "x", into="y", dtype=int).filter(third, "x").select("a", "b", "y"))

    loader = same(make)
    assert loader._plans.history
    assert "push_filter" in applied(loader), "the filter may go below all of them"


def test_a_filter_that_depends_on_what_another_function_did(files: str, eager: None) -> None:
    seen: dict[int, bool] = {}

    def puts(i: int) -> int:
        seen[i] = True
        return i

    def takes(i: int) -> bool:
        return seen.pop(i, False) and i % 3 == 0

    def make() -> cedar.Pipeline:
        seen.clear()
        return end(read(files).map(puts, "id", into="a", dtype=int).map(work, "x", into="y").filter(takes, "id"))

    loader = same(make)
    assert "push_filter" not in applied(loader)
    assert "push_filter" in refusals(loader)
    assert "as written" in refusals(loader)


class Cell:
    def __init__(self, value: int) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        return Cell, (self.value,)


def bumped(cell: Cell) -> int:
    cell.value += 1
    return cell.value


def test_python_objects_that_a_function_changes_in_place(eager: None) -> None:
    def make() -> cedar.Pipeline:
        p = cedar.from_items([{"i": i, "x": i % 97} for i in range(6000)]).map(Cell, "i", into="cell")
        p = p.map(bumped, "cell", into="a", dtype=int).map(lambda cell: cell.value, "cell", into="b", dtype=int)
        return end(p.map(work, "x", into="y", dtype=int).filter(third, "x").select("a", "b", "y", "i"))

    assert same(make)._plans.history


def test_a_reader_that_may_not_pass_one_that_changes_its_input(eager: None) -> None:
    def make() -> cedar.Pipeline:
        p = cedar.from_items([{"i": i, "x": i % 97} for i in range(6000)]).map(Cell, "i", into="cell")
        p = p.map(bumped, "cell", into="a", dtype=int).map(work, "x", into="y", dtype=int)
        return end(p.filter(lambda cell: cell.value % 3 == 0, "cell").select("a", "y", "i"))

    loader = same(make)
    assert "push_filter" not in applied(loader), "moved below the function that changes the object it reads"


def test_arrays_cannot_be_changed_in_place(files: str) -> None:
    def changes(v: np.ndarray) -> float:
        v += 1
        return float(v.sum())

    for plan in ("off", "auto"):
        p = end(read(files).map(lambda x: np.full(4, x), "x", into="v").map(changes, "v", into="s"))
        with pytest.raises(cedar.RowError, match="read-only") as caught:
            list(p.loader(plan=plan))
        assert caught.value.site is not None
        assert caught.value.site.file == __file__


# ---- functions that are not deterministic ----------------------------------------------------------------------------


def test_a_function_that_is_not_deterministic_is_found(files: str, eager: None) -> None:
    draw = np.random.default_rng(0)
    p = end(read(files).map(lambda x: draw.random(), "x", into="r").map(work, "x", into="y").filter(third, "x"))
    found, loader = run(p, "auto")
    wanted, _ = run(p, "off")
    assert [b["id"] for b in found] == [b["id"] for b in wanted], "the rows and their order are those of any run"
    assert [b["y"] for b in found] == [b["y"] for b in wanted]
    assert "not deterministic" in refusals(loader)


def test_a_random_function_with_rng_is_deterministic(files: str, eager: None) -> None:
    def noise(x: int, rng: np.random.Generator) -> float:
        return x + rng.random()

    def make() -> cedar.Pipeline:
        return end(read(files).map(noise, "x", into="r", random=True).map(work, "x", into="y").filter(third, "x"))

    assert "push_filter" in applied(same(make))


def test_a_function_that_nobody_reads_is_not_checked_against_itself(files: str) -> None:
    p = read(files).map(lambda x: time.perf_counter(), "x", into="r").filter(third, "x").select("id", "x")
    same(lambda: end(p))


# ---- functions that fail in another order ----------------------------------------------------------------------------


def longer(u: str) -> bool:
    return len(u) > 2


def there(u: str | None) -> bool:
    return u is not None and work(len(u)) >= 0  # dear, so that the other one goes first


FAILING: dict[str, Callable[[cedar.Pipeline], cedar.Pipeline]] = {
    "functions": lambda p: p.filter(there, "u").filter(longer, "u"),
    "functions, a map between": lambda p: p.filter(there, "u").map(work, "x", into="y").filter(longer, "u"),
    "function, then expression": lambda p: p.filter(lambda i: i != RARE, "id").filter(
        col("id") // (col("id") - RARE) < 9
    ),
    "cast": lambda p: p.filter(lambda i: i != RARE, "id").filter(
        (10**6 // (col("id") - RARE)).fill_null(10**12).cast(pa_int32()) > -(10**7)
    ),
    "expressions": lambda p: p.filter(col("id") != RARE).filter(
        (col("id") // (col("id") != RARE)).cast(pa_int32()) >= 0
    ),
    "across shuffle": lambda p: (
        p.filter(lambda i: i != RARE, "id")
        .shuffle(window=300)
        .filter((10**6 // (col("id") - RARE)).fill_null(10**12).cast(pa_int32()) > -(10**7))
    ),
    "map, then filter": lambda p: p.filter(there, "u").map(len, "u", into="n", dtype=int).filter(third, "x"),
}


def pa_int32() -> Any:
    import polars as pl

    return pl.Int32


@pytest.mark.parametrize("executor", ["inline", "threads"])
@pytest.mark.parametrize("name", FAILING)
def test_what_fails_on_one_row_only_in_another_order_is_no_error(
    name: str, executor: str, files: str, eager: None
) -> None:
    same(lambda: end(FAILING[name](read(files))), executor=executor)


@pytest.mark.parametrize("plan", ["off", "auto"])
def test_what_fails_as_written_fails_with_the_same_error(plan: str, files: str, eager: None) -> None:
    p = end(read(files).map(work, "x", into="y").filter(longer, "u"))
    with pytest.raises(cedar.RowError, match="has no len") as caught:
        run(p, plan)
    error = caught.value
    assert error.site is not None
    assert error.site.file == __file__
    assert error.row is not None
    assert (error.row.file, error.row.row) == (RARE // ROWS, RARE % ROWS) or str(RARE % ROWS) in str(error)
    assert error.done


# ---- declarations that are wrong -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rarely", [False, True])
def test_an_algebra_that_does_not_hold(rarely: bool, eager: None, caplog: pytest.LogCaptureFixture) -> None:
    @pointwise
    def centred(v: np.ndarray) -> np.ndarray:
        return v - v.mean() if not rarely or v[0] % 5 == 0 else v * 1.0

    @spatial
    def cropped(v: np.ndarray) -> np.ndarray:
        return v[:2]

    def make() -> cedar.Pipeline:
        p = cedar.from_items([{"x": i} for i in range(4000)]).map(lambda x: np.arange(64.0) + x, "x", into="v")
        return end(p.map(centred, "v").map(cropped, "v"))

    same(make)


def test_a_type_that_depends_on_the_row(files: str, eager: None) -> None:
    same(lambda: end(read(files).map(lambda x: x / 2 if x % 2 else x // 2, "x", into="h").filter(third, "x")))


def test_two_runs_choose_the_same_plan_when_the_first_call_loads_a_model(files: str, eager: None) -> None:
    class Model:
        def __init__(self) -> None:
            time.sleep(0.2)

        def __call__(self, x: int) -> int:
            return work(x)

    def pipeline() -> cedar.Pipeline:
        p = read(files).with_columns(u_=col("u").fill_null(""))
        return end(p.map(Model, "x", into="y", dtype=int).map(len, "u_", into="n", dtype=int).filter(third, "x"))

    moved = [
        {d.what.partition(":")[0] for d in same(pipeline).plan.decisions if d.applied and d.rule == "push_filter"}
        for _ in range(2)
    ]
    assert moved[0] == moved[1]


# ---- plan files ------------------------------------------------------------------------------------------------------


def plain_pipeline(files: str) -> cedar.Pipeline:
    return read(files).map(work, "x", into="y", dtype=int).filter(col("id") > 100).shuffle(window=500).batch(16)


def saved(files: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    path = folder / "plan.json"
    plain_pipeline(files).loader().plan.save(path)
    return path, json.loads(path.read_text())


def refused(path: Path, pipeline: cedar.Pipeline) -> str:
    with pytest.raises(PlanError) as caught:
        cedar.Plan.load(path, pipeline)
    assert caught.value.site is not None
    assert caught.value.site.file == __file__
    assert caught.value.fix
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_a_plan_file_comes_back_and_runs(files: str, tmp_path: Path) -> None:
    path, _ = saved(files, tmp_path)
    p = plain_pipeline(files)
    plan = cedar.Plan.load(path, p)
    assert run(p, plan)[0] == run(p, "off")[0]


def test_a_plan_file_of_another_pipeline(files: str, tmp_path: Path) -> None:
    path, _ = saved(files, tmp_path)
    assert "filter" in refused(path, read(files).map(work, "x", into="y", dtype=int).shuffle(window=500).batch(16))
    refused(path, read(files).map(work, "x", into="z", dtype=int).filter(col("id") > 100).shuffle(window=500).batch(16))
    refused(path, plain_pipeline(files).take(3))


def test_a_plan_file_that_was_cut_off(files: str, tmp_path: Path) -> None:
    path, _ = saved(files, tmp_path)
    whole = path.read_text()
    for size in range(0, len(whole) - 2, max(1, len(whole) // 40)):
        path.write_text(whole[:size])
        refused(path, plain_pipeline(files))


@pytest.mark.parametrize("version", [0, 2, 99, "1", None, [1], 1.5, True])
def test_a_plan_file_of_another_version(version: Any, files: str, tmp_path: Path) -> None:
    path, body = saved(files, tmp_path)
    path.write_text(json.dumps(body | {"cedar_plan": version}))
    assert "version" in refused(path, plain_pipeline(files))


def test_a_plan_file_edited_into_an_illegal_order(files: str, tmp_path: Path) -> None:
    p = read(files).map(work, "x", into="y", dtype=int).filter(col("y") > 100).batch(16)
    path = tmp_path / "plan.json"
    cedar.Plan.as_written(p.node).save(path)
    body = json.loads(path.read_text())
    nodes = body["nodes"]
    nodes[1]["op"], nodes[2]["op"] = nodes[2]["op"], nodes[1]["op"]
    nodes[1]["is"], nodes[2]["is"] = nodes[2]["is"], nodes[1]["is"]
    path.write_text(json.dumps(body))
    refused(path, p)


def test_plan_files_edited_at_random_are_refused_or_legal(files: str, tmp_path: Path) -> None:
    path, body = saved(files, tmp_path)
    wanted, _ = run(plain_pipeline(files), "off")
    odd: list[Any] = [None, -1, 0, 1, 99, "x", [], {}, [0, 0], 1e300, True]
    tried = loaded = 0
    for number, node in enumerate(body["nodes"]):
        for key in [*node, "columns", "where", "keep", "cache", "n", "place"]:
            for value in odd:
                tried += 1
                changed = json.loads(json.dumps(body))
                changed["nodes"][number][key] = value
                path.write_text(json.dumps(changed))
                p = plain_pipeline(files)
                try:
                    plan = cedar.Plan.load(path, p)
                except PlanError:
                    continue
                loaded += 1
                if changed["nodes"] != body["nodes"] and key not in ("is",):
                    try:
                        assert run(p, plan)[0] == wanted, changed["nodes"][number]
                    except CedarError as error:
                        assert error.fix, (str(error), changed["nodes"][number])
    assert tried > loaded


def test_a_pinned_plan_after_the_code_changed(files: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, _ = saved(files, tmp_path)
    changed = read(files).map(lambda x: -x, "x", into="y", dtype=int).filter(col("id") > 100)
    changed = changed.shuffle(window=500).batch(16)
    with caplog.at_level(logging.WARNING, "cedar"):
        plan = cedar.Plan.load(path, changed)
    assert "changed since the plan was saved" in caplog.text
    assert run(changed, plan)[0] == run(changed, "off")[0], "the code of today, in the order of the plan"


# ---- profiles and budgets --------------------------------------------------------------------------------------------


def test_a_profile_of_another_pipeline(files: str) -> None:
    profile = plain_pipeline(files).profile(seconds=0.05)
    with pytest.raises(PlanError, match="another pipeline") as caught:
        read(files).batch(3).optimize(profile=profile)
    assert caught.value.site is not None
    assert caught.value.site.file == __file__


def test_a_profile_of_another_machine_is_used_and_said_so(files: str) -> None:
    from dataclasses import replace

    p = plain_pipeline(files)
    profile = replace(p.profile(seconds=0.05), machine=Machine(cores=4096, memory=1 << 50))
    plan = p.optimize(profile=profile)
    assert "4096" in "\n".join(str(d) for d in plan.decisions)
    assert run(p, plan)[0] == run(p, "off")[0]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"cedar profile": 99}', "\x00\xff", "NaN"])
def test_a_profile_file_of_garbage(text: str, files: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(PlanError) as caught:
        Profile.load(path, plain_pipeline(files))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("profile", ["profile.json", 3, {}, object()])
def test_a_profile_that_is_none(profile: Any, files: str) -> None:
    with pytest.raises(CedarError, match="profile") as caught:
        plain_pipeline(files).optimize(profile=profile)
    assert caught.value.fix


@pytest.mark.parametrize("budget", ["all", 3, {}, object()])
def test_a_budget_that_is_none(budget: Any, files: str) -> None:
    with pytest.raises(CedarError, match="budget") as caught:
        plain_pipeline(files).optimize(budget)
    assert caught.value.fix


@pytest.mark.parametrize(
    "options",
    [{"cpus": 0}, {"cpus": -1}, {"cpus": 1.5}, {"cpus": True}, {"memory": "a lot"}, {"memory": -1}, {"cache": [1]}],
)
def test_a_budget_of_nonsense(options: dict[str, Any]) -> None:
    with pytest.raises(CedarError) as caught:
        cedar.Budget(**options)
    assert caught.value.site is not None
    assert caught.value.site.file == __file__


@pytest.mark.parametrize("plan", [None, 0, True, "fast", "", object(), {}, ["auto"], np.array([1, 2]), "AUTO"])
def test_a_plan_that_is_none(plan: Any, files: str) -> None:
    with pytest.raises(PlanError, match="plan") as caught:
        plain_pipeline(files).loader(plan=plan)
    assert caught.value.site is not None
    assert caught.value.site.file == __file__
    assert caught.value.fix


def test_the_plan_of_another_pipeline_object(files: str) -> None:
    plan = plain_pipeline(files).loader().plan
    with pytest.raises(PlanError, match="another pipeline"):
        plain_pipeline(files).loader(plan=plan)
