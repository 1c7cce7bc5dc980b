"""Bad input for the optimizer: it ends in the rows of the pipeline as written, or in a CedarError that says all."""

from __future__ import annotations

import gc
import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import CedarError, PipelineError, PlanError, SourceError, col
from cedar.control.controller import ControllerSettings
from cedar.engine import plan_control as planning
from cedar.engine.binding import Binding
from cedar.engine.first_rows import FirstRows
from cedar.operators.algebra import pointwise, spatial
from cedar.operators.base import Env
from cedar.optimizer import planner as optimizer
from cedar.optimizer import search
from cedar.profile import Machine, Profile
from cedar.tasks.chain import KernelStep, Program
from cedar.tasks.reading import Reader, read_split
from tests.control.eager import eager
from tests.toy_runs import plain
from tests.waiting import LIMIT, eventually

pytestmark = pytest.mark.timeout(180)

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


@pytest.fixture(autouse=True)
def worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are made for runs of any length, and taken whatever they gain, so that a test sees them.

    The controller is asked at each delivery: workers that went ahead may leave all of them for one moment.
    """
    monkeypatch.setattr(planning, "step", eager)
    monkeypatch.setattr(planning, "ControllerSettings", partial(ControllerSettings, poll=0.0, least_gain=0.0))


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
            thread = loader._epochs.job.plans._thread
            if thread is not None and options.get("executor") != "inline":
                thread.join(60)
    return found, loader


def same(make: Callable[[], cedar.Pipeline], **options: Any) -> cedar.Loader:
    """The rows are those of the pipeline as written; the loader that ran optimized."""
    wanted, _ = run(make(), "off", **options)
    found, loader = run(make(), "auto", **options)
    assert found == wanted
    return loader


def switched(loader: cedar.Loader) -> bool:
    """Whether a plan took over: on a busy machine that may be in one of the next epochs."""
    for _ in range(6):
        if loader._epochs.job.plans.history:
            return True
        list(loader)
    return False


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


@pytest.mark.heavy
def test_a_function_that_reads_what_another_one_leaves_in_a_global(files: str) -> None:
    seen: dict[int, int] = {}

    def puts(i: int) -> int:
        seen[i] = i
        return i

    def takes(i: int) -> int:
        return seen.get(i, -1)  # not pop: at a change of plan two tasks may call it for one row, at the same time

    def make() -> cedar.Pipeline:
        seen.clear()
        p = read(files).map(puts, "id", into="a", dtype=int).map(takes, "id", into="b", dtype=int)
        return end(p.map(work, "x", into="y", dtype=int).filter(third, "x").select("a", "b", "y"))

    loader = same(make)
    # A check next to the run may take from the global what the run was about to take: then it finds a difference. On a
    # slow machine the run may end before.
    taken, found = bool(loader._epochs.job.plans.history), refusals(loader)
    assert taken or not found or "all of it" in found, found
    assert not taken or "push_filter" in applied(loader), "the filter may go below all of them"


@pytest.mark.heavy
def test_a_filter_that_depends_on_what_another_function_did(files: str) -> None:
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
    assert "all of it" in refusals(loader), "found on sample rows"


class Cell:
    def __init__(self, value: int) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        return Cell, (self.value,)


def bumped(cell: Cell) -> int:
    cell.value += 1
    return cell.value


def test_python_objects_that_a_function_changes_in_place() -> None:
    def make() -> cedar.Pipeline:
        p = cedar.from_items([{"i": i, "x": i % 97} for i in range(6000)]).map(Cell, "i", into="cell")
        p = p.map(bumped, "cell", into="a", dtype=int).map(lambda cell: cell.value, "cell", into="b", dtype=int)
        return end(p.map(work, "x", into="y", dtype=int).filter(third, "x").select("a", "b", "y", "i"))

    assert eventually(lambda: switched(same(make)))  # a short run may end before a plan is ready


def test_an_audit_does_not_change_objects_twice() -> None:
    cells = [Cell(i) for i in range(10)]
    node = cedar.from_items([{"cell": cell} for cell in cells]).map(bumped, "cell", into="a", dtype=int).node
    binding = Binding(node, None, Env())
    steps = (KernelStep(binding.kernel(node)),)
    reader, (split,) = Reader(node.inputs[0].operator.source, 0), binding.splits(node.inputs[0])  # type: ignore[attr-defined]
    before = [cell.value for cell in cells]
    read_split(Program(steps), reader, split, 0, Env(watch="audit"))
    assert [cell.value for cell in cells] == before


@pytest.mark.heavy
def test_a_reader_that_may_not_pass_one_that_changes_its_input() -> None:
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


@pytest.mark.heavy
def test_a_function_that_is_not_deterministic_is_found(files: str) -> None:
    draw = np.random.default_rng(0)
    p = end(read(files).map(lambda x: draw.random(), "x", into="r").map(work, "x", into="y").filter(third, "x"))
    found, loader = run(p, "auto")
    wanted, _ = run(p, "off")
    assert [b["id"] for b in found] == [b["id"] for b in wanted], "the rows and their order are those of any run"
    assert [b["y"] for b in found] == [b["y"] for b in wanted]
    assert "not deterministic" in refusals(loader)


@pytest.mark.heavy
def test_a_random_function_with_rng_is_deterministic(files: str) -> None:
    def noise(x: int, rng: np.random.Generator) -> float:
        return x + rng.random()

    def make() -> cedar.Pipeline:
        return end(read(files).map(noise, "x", into="r", random=True).map(work, "x", into="y").filter(third, "x"))

    assert "push_filter" in applied(same(make))


@pytest.mark.heavy
def test_a_function_that_nobody_reads_is_not_checked_against_itself(files: str) -> None:
    p = read(files).map(lambda x: time.perf_counter(), "x", into="r").filter(third, "x").select("id", "x")
    same(lambda: end(p))


# ---- functions that fail in another order ----------------------------------------------------------------------------


def longer(u: str) -> bool:
    return len(u) > 2


def there(u: str | None) -> bool:
    return u is not None and work(len(u)) >= 0  # expensive, so that the other one goes first


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


@pytest.mark.heavy
@pytest.mark.parametrize("executor", ["inline", "threads"])
@pytest.mark.parametrize("name", FAILING)
def test_what_fails_on_one_row_only_in_another_order_is_no_error(name: str, executor: str, files: str) -> None:
    same(lambda: end(FAILING[name](read(files))), executor=executor)


@pytest.mark.heavy
@pytest.mark.parametrize("plan", ["off", "auto"])
def test_what_fails_as_written_fails_with_the_same_error(plan: str, files: str) -> None:
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


@pytest.mark.heavy
@pytest.mark.parametrize("rarely", [False, True])
def test_an_algebra_that_does_not_hold(rarely: bool, caplog: pytest.LogCaptureFixture) -> None:
    @pointwise
    def centered(v: np.ndarray) -> np.ndarray:
        return v - v.mean() if not rarely or v[0] % 5 == 0 else v * 1.0

    @spatial
    def cropped(v: np.ndarray) -> np.ndarray:
        return v[:2]

    def make() -> cedar.Pipeline:
        p = cedar.from_items([{"x": i} for i in range(4000)]).map(lambda x: np.arange(64.0) + x, "x", into="v")
        return end(p.map(centered, "v").map(cropped, "v"))

    same(make)


@pytest.mark.heavy
def test_a_type_that_depends_on_the_row(files: str) -> None:
    same(lambda: end(read(files).map(lambda x: x / 2 if x % 2 else x // 2, "x", into="h").filter(third, "x")))


@pytest.mark.heavy
def test_two_runs_choose_the_same_plan_when_the_first_call_loads_a_model(files: str) -> None:
    class Model:
        def __init__(self) -> None:
            time.sleep(0.2)

        def __call__(self, x: int) -> int:
            return sum(i * x % 7 for i in range(1000))  # far above what reading takes, so that noise decides nothing

    def pipeline() -> cedar.Pipeline:
        p = read(files).with_columns(u_=col("u").fill_null(""))
        return end(p.map(Model, "x", into="y", dtype=int).map(len, "u_", into="n", dtype=int).filter(third, "x"))

    moved = []
    for _ in range(2):
        loader = same(pipeline)
        assert switched(loader)
        moved.append({d.what.partition(":")[0] for d in loader.plan.decisions if d.applied and d.rule == "push_filter"})
    assert moved == [{"filter(third)"}] * 2


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


@pytest.mark.heavy
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


@pytest.mark.parametrize("version", [0, 1, 99, "1", None, [1], 1.5, True])
def test_a_plan_file_of_another_version(version: Any, files: str, tmp_path: Path) -> None:
    path, body = saved(files, tmp_path)
    path.write_text(json.dumps(body | {"cedar_plan": version}))
    assert "version" in refused(path, plain_pipeline(files))


def test_a_plan_file_edited_into_an_illegal_order(files: str, tmp_path: Path) -> None:
    p = read(files).map(work, "x", into="y", dtype=int).filter(col("y") > 100).batch(16)
    path = tmp_path / "plan.json"
    cedar.Plan.as_written(p.node).save(path)
    body = json.loads(path.read_text())
    body["steps"] = [{"pass": 0, "at": 2, "step": "Reorder", "order": [1, 0]}]
    path.write_text(json.dumps(body))
    assert "writes 'y', which filter" in refused(path, p)


def outcome(pipeline: cedar.Pipeline, plan: Any) -> Any:
    """What a run gives, or that it ends in an error that says what to do."""
    try:
        return run(pipeline, plan)[0]
    except CedarError as error:
        return "an error" if error.fix else str(error)


@pytest.mark.heavy
def test_plan_files_edited_at_random_are_refused_or_legal(files: str, tmp_path: Path) -> None:
    path, body = saved(files, tmp_path)
    wanted, _ = run(plain_pipeline(files), "off")
    odd: list[Any] = [None, -1, 0, 1, 99, "x", [], {}, [0, 0], 1e300, True]
    tried = loaded = 0
    for number, step in enumerate(body["steps"]):
        for key in [*step, "order", "columns", "above", "places"]:
            for value in odd:
                tried += 1
                changed = json.loads(json.dumps(body))
                changed["steps"][number][key] = value
                path.write_text(json.dumps(changed))
                p = plain_pipeline(files)
                try:
                    plan = cedar.Plan.load(path, p)
                except PlanError:
                    continue
                loaded += 1
                if changed["steps"] != body["steps"]:
                    assert outcome(p, plan) in (wanted, "an error"), changed["steps"][number]
    assert tried > loaded


@pytest.mark.heavy
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


@pytest.mark.heavy
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


# ---- an optimizer that fails -----------------------------------------------------------------------------------------


def broken(*_: Any, **__: Any) -> Any:
    raise RuntimeError("a bug in the optimizer")


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "cedar" and r.levelno >= logging.WARNING]


@pytest.mark.heavy
def test_a_rule_that_raises(files: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def crashes(node: Any, facts: Any) -> Any:
        raise RuntimeError("a bug in the optimizer")

    monkeypatch.setattr(optimizer, "RULES", (crashes,))
    monkeypatch.setattr(optimizer, "MOVES", (crashes,))
    with caplog.at_level(logging.WARNING, "cedar"):
        loader = same(lambda: plain_pipeline(files))
    assert loader.plan.method == "as written"
    assert len(warnings_of(caplog)) == 1, warnings_of(caplog)


@pytest.mark.heavy
def test_a_search_that_raises(files: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(search, "search", broken)
    with caplog.at_level(logging.WARNING, "cedar"):
        loader = same(lambda: plain_pipeline(files))
        assert len(list(loader)) > 0, "the next epoch"
    assert len(warnings_of(caplog)) == 1, warnings_of(caplog)
    assert "the run continues" in warnings_of(caplog)[0]


@pytest.mark.heavy
def test_a_check_that_raises(files: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(FirstRows, "difference", broken)
    with caplog.at_level(logging.WARNING, "cedar"):
        same(lambda: end(read(files).map(work, "x", into="y").filter(third, "x")))
    assert len(warnings_of(caplog)) == 1, warnings_of(caplog)


@pytest.mark.heavy
def test_nobody_waits_for_a_plan(files: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Event(), threading.Event()

    def forever(*_: Any, **__: Any) -> Any:
        begun.set()
        go.wait(LIMIT)
        raise RuntimeError("late")

    monkeypatch.setattr(search, "search", forever)
    try:
        wanted = [plain(b["id"]) for b in plain_pipeline(files).loader(plan="off")]
        loader = plain_pipeline(files).loader(workers=2)
        assert [plain(b["id"]) for b in loader] == wanted, "an epoch ends while the search continues"
        assert begun.is_set()
        assert [plain(b["id"]) for b in loader] != wanted, "the next epoch runs, too"
        assert sum(t.name == "cedar-plan" for t in threading.enumerate()) == 1, "there is no second one meanwhile"
    finally:
        go.set()


# ---- users who go away -----------------------------------------------------------------------------------------------


def planning_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "cedar-plan"]


@pytest.fixture
def checking(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Set once a plan is being compared next to the run; that takes a while."""
    begun, difference = threading.Event(), FirstRows.difference

    def slowly(self: FirstRows, plan: Any, *going: Any) -> Any:
        if threading.current_thread().name == "cedar-plan":
            begun.set()
            time.sleep(0.1)
        return difference(self, plan, *going)

    monkeypatch.setattr(FirstRows, "difference", slowly)
    yield begun
    for thread in planning_threads():
        thread.join(LIMIT)
        assert not thread.is_alive()


def counted(files: str, calls: list[int]) -> cedar.Pipeline:
    def count(x: int) -> int:
        calls.append(x)
        return work(x)

    return end(read(files).map(count, "x", into="y", dtype=int).filter(third, "x"))


def until(checking: threading.Event, iterator: Iterator[Any]) -> int:
    """How many batches were taken until a plan is being checked."""
    taken = 0
    while not checking.is_set():
        next(iterator)
        taken += 1
        time.sleep(0.002)
    return taken


def settled(calls: list[int]) -> bool:
    """No call comes any more, once those in progress have ended."""
    for thread in threading.enumerate():
        if thread.name.startswith("cedar") and thread.name != "cedar-plan":
            thread.join(LIMIT)
    before = len(calls)
    for thread in planning_threads():  # which end after the run
        thread.join(LIMIT)
    return len(calls) == before


@pytest.mark.heavy
def test_break_while_planning_then_again(files: str, checking: threading.Event) -> None:
    calls: list[int] = []
    with counted(files, calls).loader(workers=2) as loader:
        iterator = iter(loader)
        until(checking, iterator)
        iterator.close()  # type: ignore[attr-defined]
        assert settled(calls), "no function of the user is called after the end of the run"
        found = [plain(b["id"]) for b in loader]
    assert found == [plain(b["id"]) for b in counted(files, []).loader(plan="off")]


def test_an_interrupt_while_planning(files: str, checking: threading.Event) -> None:
    calls: list[int] = []
    loader = counted(files, calls).loader(workers=2)
    with pytest.raises(KeyboardInterrupt):
        for _ in loader:
            if checking.is_set():
                raise KeyboardInterrupt
            time.sleep(0.002)
    loader.close()
    assert settled(calls)


def test_a_loader_that_is_dropped_while_planning(files: str, checking: threading.Event) -> None:
    calls: list[int] = []
    iterator = iter(counted(files, calls).loader(workers=2))
    until(checking, iterator)
    del iterator
    gc.collect()
    assert settled(calls)
    assert eventually(lambda: not planning_threads())


def test_closing_while_planning_with_the_iterator_still_held(files: str, checking: threading.Event) -> None:
    calls: list[int] = []
    loader = counted(files, calls).loader(workers=2)
    iterator = iter(loader)
    until(checking, iterator)
    loader.close()
    assert settled(calls)
    del iterator


# ---- threads ---------------------------------------------------------------------------------------------------------


@pytest.mark.heavy
def test_inline_runs_call_functions_in_their_own_thread_only(files: str) -> None:
    threads: set[int] = set()
    db = sqlite3.connect(":memory:")  # refuses other threads

    def ask(x: int) -> int:
        threads.add(threading.get_ident())
        return int(db.execute("select ? + 1", (x,)).fetchone()[0])

    def make() -> cedar.Pipeline:
        return end(read(files).map(ask, "x", into="y", dtype=int).map(work, "x", into="w").filter(third, "x"))

    loader = same(make, executor="inline")
    db.close()
    assert threads == {threading.get_ident()}
    assert switched(loader)


@pytest.mark.heavy
def test_an_instance_of_a_class_serves_one_thread_at_a_time(files: str) -> None:
    class Careful:
        def __init__(self) -> None:
            self.busy = threading.Lock()

        def __call__(self, x: int) -> int:
            assert self.busy.acquire(blocking=False), "used by two threads"
            try:
                return work(x)
            finally:
                self.busy.release()

    same(lambda: end(read(files).map(Careful, "x", into="y", dtype=int).filter(third, "x")))


# ---- sources ---------------------------------------------------------------------------------------------------------


def test_files_that_change_between_listing_and_the_next_plan(tmp_path: Path, checking: threading.Event) -> None:
    for number in range(30):
        pq.write_table(
            pa.table({"id": range(number * 100, number * 100 + 100), "x": [1] * 100}), tmp_path / f"{number:02}.parquet"
        )
    p = cedar.read_parquet(f"{tmp_path}/*.parquet").map(work, "x", into="y").filter(third, "id").batch(8)
    with pytest.raises(SourceError) as caught, p.loader(workers=1) as loader:
        iterator = iter(loader)
        until(checking, iterator)
        for path in tmp_path.iterdir():
            path.unlink()
        for _ in iterator:
            pass
    assert caught.value.fix
    assert ".parquet" in str(caught.value)


SOURCES: dict[str, Callable[[int], cedar.Pipeline]] = {
    "items": lambda n: cedar.from_items([{"id": i, "x": i} for i in range(n)]),
    "arrow": lambda n: cedar.from_arrow(
        pa.table({"id": pa.array(range(n), pa.int64()), "x": pa.array(range(n), pa.int64())})
    ),
    "iterable": lambda n: cedar.from_iterable(lambda: iter([{"id": i, "x": i} for i in range(n)])),
}

SHAPES: dict[str, Callable[[cedar.Pipeline], cedar.Pipeline]] = {
    "nothing": lambda p: p,
    "batch": lambda p: p.batch(3, last="keep"),
    "filter": lambda p: p.map(work, "x", into="y", dtype=int).filter(col("id") >= 0).batch(3, last="keep"),
    "shuffle": lambda p: p.map(work, "x", into="y", dtype=int).shuffle(window=2).filter(third, "id").select("y"),
    "take": lambda p: p.map(work, "x", into="y", dtype=int).take(2),
    "none left": lambda p: p.map(work, "x", into="y", dtype=int).filter(col("id") < 0),
}


@pytest.mark.heavy
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", [0, 1, 7])
@pytest.mark.parametrize("source", SOURCES)
def test_sources_of_few_rows(source: str, n: int, shape: str) -> None:
    def make() -> cedar.Pipeline:
        return SHAPES[shape](SOURCES[source](n))

    def outcome(plan: str) -> Any:
        try:
            return run(make(), plan)[0]
        except CedarError as error:
            error.done = None
            return str(error)

    assert outcome("auto") == outcome("off")


@pytest.mark.heavy
def test_an_iterator_is_not_begun_again_for_a_plan() -> None:
    passes: list[int] = []

    def rows() -> Iterator[dict[str, int]]:
        number = len(passes)
        passes.append(0)
        for i in range(6000):
            passes[number] += 1
            yield {"id": i, "x": i}

    def make() -> cedar.Pipeline:
        passes.clear()
        return (
            cedar.from_iterable(rows, dtypes={"id": int, "x": int})
            .map(work, "x", into="y")
            .filter(third, "id")
            .batch(8)
        )

    loader = same(make)
    assert sum(n == 6000 for n in passes) == 1
    assert sum(passes) < 6000 + 2500, "a sample, for the check"
    assert switched(loader)
    found = [plain(b["id"]) for b in loader]
    assert found == [plain(b["id"]) for b in make().loader(plan="off")]
    assert "push_filter" in applied(loader), "the next epoch runs the plan"


@pytest.mark.heavy
@pytest.mark.parametrize("wrap", [iter, lambda rows: (row for row in rows), lambda rows: map(dict, rows)])
def test_an_iterator_that_is_handed_out_twice(wrap: Any, caplog: pytest.LogCaptureFixture) -> None:
    def make(typed: bool = True) -> cedar.Pipeline:
        rows = wrap([{"id": i, "x": i} for i in range(9000)])
        p = cedar.from_iterable(lambda: rows).map(work if typed else lambda x: x, "x", into="y")
        return p.filter(third, "id").batch(8)

    with caplog.at_level(logging.WARNING, "cedar"):
        same(make)  # one pass is enough for a run, and nothing is lost
    assert not warnings_of(caplog)
    for plan in ("off", "auto"):
        with pytest.raises(PipelineError, match="same iterator twice") as caught:
            list(make(typed=False).loader(plan=plan))
        assert caught.value.fix


@pytest.mark.heavy
def test_sinks(files: str, tmp_path: Path) -> None:
    p = read(files).map(work, "x", into="y", dtype=int).filter(col("id") % 3 == 0).select("y", "id")
    wanted = [row for b in p.batch(64, last="keep").loader(plan="off") for row in zip(b["y"], b["id"], strict=True)]
    table = p.to_arrow()
    assert table.column_names == ["y", "id"]
    assert list(zip(table["y"].to_pylist(), table["id"].to_pylist(), strict=True)) == wanted
    assert p.count() == len(wanted)
    written = cedar.read_parquet(p.write_parquet(str(tmp_path / "out"))).to_arrow()
    assert written.equals(table)
