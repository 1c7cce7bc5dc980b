"""The audit of first rows: a plan that gives other rows on them is refused before anything of it is delivered."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import col
from cedar.core.errors import Skip
from cedar.engine.binding import Binding
from cedar.engine.first_rows import FirstRows
from cedar.operators.base import Env
from cedar.pipeline.planning import initial_plan
from cedar.plan import graph
from cedar.plan.data import Plan
from cedar.plan.graph import Node, Scan
from cedar.plan.lower import lower
from tests.waiting import LIMIT

called: list[int] = []
COUNT = iter(range(10**6))
GENERATOR = np.random.default_rng(0)


def seen(y: int) -> int:
    called.append(y)
    return y + 1


def first_rows(pipeline: cedar.Pipeline, **options: Any) -> FirstRows:
    return FirstRows(Binding(pipeline.node, None, Env()), **options)


def without_the_top(root: Node) -> Plan:
    return replace(Plan.as_written(root), root=root.inputs[0])


@pytest.fixture(autouse=True)
def nothing_else_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cedar.engine.binding.lower", lower)


@pytest.fixture
def source(tmp_path: Any) -> cedar.Pipeline:
    pq.write_table(pa.table({"x": range(400), "y": [i % 7 for i in range(400)]}), tmp_path / "t.parquet")
    return cedar.read_parquet(str(tmp_path / "t.parquet"))


def test_a_plan_that_loses_a_filter_is_refused(source: cedar.Pipeline) -> None:
    p = source.filter(col("y") > 2)
    asked, bad = first_rows(p), without_the_top(p.node)
    assert asked.rewrites(bad)
    assert asked.difference(bad) is not None
    assert not asked.rewrites(asked.written)
    assert asked.difference(asked.written) is None


def test_a_source_without_rows_refuses_no_plan(tmp_path: Any) -> None:
    pq.write_table(pa.table(dict.fromkeys("abc", pa.nulls(0, pa.int64()))), tmp_path / "t.parquet")
    p = cedar.read_parquet(tmp_path / "t.parquet").filter(col("a") > 1).select("a", "b")
    assert first_rows(p).difference(initial_plan(p.node)) is None


@pytest.mark.usefixtures("source")
def test_a_plan_that_passed_is_remembered_by_other_processes(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    calls: list[Plan] = []
    found = FirstRows._compare
    monkeypatch.setattr(FirstRows, "_compare", lambda self, plan, going: calls.append(plan) or found(self, plan, going))

    def compared(more: int = 0, bound: int = 2) -> int:
        """How often a plan was compared, by a process that knows only what is kept."""
        calls.clear()
        source = cedar.read_parquet(str(tmp_path / "t.parquet"))
        p = source.map(lambda y: y + more, "y", dtype=int).filter(col("x") > bound).batch(4)
        with p.loader() as loader:
            next(iter(loader))
        return len(calls)

    assert [compared(), compared()] == [1, 0]
    assert [compared(more=1), compared(bound=3), compared(), compared(more=1)] == [1, 1, 0, 0], "it is other code"
    with monkeypatch.context() as patched:
        patched.setattr("cedar.tasks.fingerprints.versions", lambda: {"polars": "0"})
        assert compared() == 1, "of other libraries"
    os.utime(tmp_path / "t.parquet", (1, 1))
    assert [compared(), compared()] == [1, 0], "of other data"
    for path in (tmp_path / "cache").rglob("*.arrow"):
        path.write_bytes(path.read_bytes()[:-1])
    assert compared() == 1


def test_a_plan_that_did_not_pass_is_compared_again(source: cedar.Pipeline) -> None:
    for _ in range(2):
        p = source.filter(col("y") > 2)
        assert first_rows(p).difference(without_the_top(p.node)) is not None


def test_a_plan_is_compared_once_for_all_loaders_of_a_pipeline(
    source: cedar.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Plan] = []
    found = FirstRows._compare
    monkeypatch.setattr(FirstRows, "_compare", lambda self, plan, going: calls.append(plan) or found(self, plan, going))
    p = source.filter(col("y") > 2)
    one, other = p.batch(4), p.batch(5)
    for pipeline, compared in ((one, 1), (one, 1), (other, 2), (one, 2)):
        with pipeline.loader() as loader:
            next(iter(loader))
        assert len(calls) == compared


def test_expensive_functions_are_called_on_few_rows(source: cedar.Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    p = source.map(seen, "y", into="z", dtype=int).filter(col("x") >= 0)
    asked = first_rows(p)
    monkeypatch.setattr("cedar.engine.first_rows._SECONDS", 0.0)
    called.clear()
    assert asked.difference(initial_plan(p.node)) is None
    assert 0 < len(called) <= 2 * 2


def test_functions_are_called_on_64_rows_at_most(source: cedar.Pipeline) -> None:
    p = source.map(seen, "y", into="z", dtype=int).filter(col("x") > 2)
    called.clear()
    assert first_rows(p).difference(initial_plan(p.node)) is None
    assert len(called) <= 2 * (2 + 15 + 63 + 64), "some of them again, as nothing knows before how long they take"


def test_only_columns_that_matter_are_read(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({name: np.arange(90) for name in "abcdefgh"})
    pq.write_table(table, tmp_path / "t.parquet")
    p = cedar.read_parquet(str(tmp_path / "t.parquet")).filter(col("b") > 2).select("a").batch(4)
    asked = first_rows(p)
    assert asked.difference(initial_plan(p.node)) is None
    (rows,) = asked._rows.values()
    assert sorted(rows.columns) == ["a", "b"]


def test_all_columns_are_read_where_a_function_sees_whole_rows(source: cedar.Pipeline) -> None:
    p = source.map(lambda row: {"n": len(row)}).filter(col("n") == 2)
    asked = first_rows(p)
    assert asked.difference(initial_plan(p.node)) is None
    bad = without_the_top(p.node)
    assert asked.difference(replace(bad, root=graph.replace(bad.root, narrow))) is not None


def narrow(node: Node) -> Node | None:
    return None if node.inputs else dataclasses.replace(node, operator=Scan(node.operator.source, ("x",)))  # type: ignore[attr-defined]


def no_filter(node: Node) -> Node | None:
    scan = node.operator
    if not isinstance(scan, Scan) or not scan.where:
        return None
    return dataclasses.replace(node, operator=Scan(scan.source, scan.columns, scan.where[:-1]))


def shaped(p: cedar.Pipeline, shape: str) -> cedar.Pipeline:
    p = p.filter(col("y") > 2)
    if shape == "shuffle":
        return p.shuffle(seed=1, window=100).batch(8)
    if shape == "large batches":
        return p.batch(512, last="drop")
    if shape == "rows":
        return p.select("x")
    return p.map(seen, "y", dtype=int).take(200).batch(8, last="keep")


@pytest.mark.parametrize("order", ["exact", "any"])
@pytest.mark.parametrize("executor", ["inline", "threads"])
@pytest.mark.parametrize("shape", ["rows", "shuffle", "large batches", "functions"])
def test_wrong_rows_are_not_delivered(shape: str, executor: str, order: Any, source: cedar.Pipeline) -> None:
    p = shaped(source, shape)
    bad = Plan(p.node, graph.replace(initial_plan(p.node).root, no_filter), method="loaded")
    wanted = [row for unit in p.loader(plan="off", executor="inline") for row in np.atleast_1d(unit["x"]).tolist()]
    with p.loader(plan=bad, executor=executor, workers=2, order=order) as loader:
        found = [row for unit in loader for row in np.atleast_1d(unit["x"]).tolist()]
        assert sorted(found) == sorted(wanted)
        if order == "exact":
            assert found == wanted
        assert not loader._epochs.job.plans.rewrites
        assert "the plan does not fit" not in str(loader.report())
        assert any(not d.applied and d.rule == "plan" for d in loader.plan.decisions)


@pytest.mark.parametrize("order", ["exact", "any"])
@pytest.mark.parametrize("makes", ["anew", "once"])
def test_the_rows_of_an_iterator_are_compared_and_then_delivered(makes: str, order: Any) -> None:
    rows = [{"x": i, "y": i % 7} for i in range(300)]
    once = iter(rows)
    begun: list[Iterator[Any]] = []

    def make() -> Iterator[Any]:
        begun.append(once if makes == "once" else iter(rows))
        return begun[-1]

    def pipeline() -> cedar.Pipeline:
        return cedar.from_iterable(make, dtypes={"x": int, "y": int}).map(seen, "x", into="z", dtype=int)

    p = pipeline().filter(col("y") > 2).batch(8, last="keep")
    good = initial_plan(p.node)
    bad = replace(good, root=graph.replace(good.root, without_filter))
    assert bad.root is not good.root
    wanted = [row["x"] for row in rows if row["y"] > 2]
    with p.loader(plan=bad, executor="inline", order=order) as loader:
        assert [x for batch in loader for x in batch["x"].tolist()] == wanted
        assert not loader._epochs.job.plans.rewrites
    assert len(begun) == 1, "the first rows are not read twice"


def without_filter(node: Node) -> Node | None:
    if node.inputs and node.inputs[0].condition is not None:
        return dataclasses.replace(node, inputs=node.inputs[0].inputs)
    return None


def test_a_function_that_needs_full_batches_is_given_what_there_is(tmp_path: Any) -> None:
    pq.write_table(pa.table({"x": range(64), "y": [i % 7 for i in range(64)]}), tmp_path / "t.parquet")

    def halves(x: np.ndarray) -> np.ndarray:
        return x.reshape(4, -1).ravel() if len(x) in (48, 16) else x.reshape(5, 0)

    p = (
        cedar.read_parquet(str(tmp_path / "t.parquet"))
        .filter(col("y") >= 0)
        .batch(48, last="keep")
        .map(halves, "x", dtype=int)
    )
    assert first_rows(p).difference(initial_plan(p.node)) is None


@pytest.mark.parametrize("draw", [lambda: next(COUNT), lambda: float(GENERATOR.random())], ids=["counter", "generator"])
def test_a_function_that_is_not_deterministic_is_named_so(draw: Callable[[], Any], source: cedar.Pipeline) -> None:
    p = source.map(lambda y: draw(), "y", into="r", dtype=type(draw())).filter(col("x") > 9).batch(4)
    found = first_rows(p).difference(initial_plan(p.node))
    assert found is not None
    assert "not deterministic" in found.what


def test_rows_that_are_skipped_are_compared(source: cedar.Pipeline) -> None:
    def fails(y: int) -> int:
        if y == 3:
            raise ValueError(y)
        return y

    p = source.map(fails, "y", dtype=int, on_error=Skip()).batch(4, last="keep")
    binding = Binding(p.node, None, Env())
    assert FirstRows(binding).difference(Plan.as_written(p.node)) is None
    assert FirstRows(binding).difference(Plan(p.node, graph.replace(p.node, unmapped))) is not None


def unmapped(node: Node) -> Node | None:
    below = node.inputs[0] if node.inputs else None
    return (
        dataclasses.replace(node, inputs=below.inputs) if below is not None and below.operator.name == "map" else None
    )


def deadly(x: int) -> int:
    if x == 5:
        os._exit(9)
    return x


@pytest.mark.heavy
def test_a_function_that_ends_the_process_ends_none_but_workers(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cedar.engine.first_rows._SECONDS", 1e3)  # all rows are compared
    pq.write_table(pa.table({"x": range(40), "z": range(40)}), tmp_path / "t.parquet")
    p = cedar.read_parquet(str(tmp_path / "t.parquet")).map(deadly, "x", into="y", dtype=int).select("x", "y")
    with p.batch(8, last="keep").loader(executor="processes", workers=1, on_error=Skip()) as loader:
        assert loader._epochs.job.plans.first_rows.rewrites(loader.plan), "a column is not read"
        assert [x for batch in loader for x in batch["x"].tolist()] == [i for i in range(40) if i != 5]
        assert "scan_columns" in {d.rule for d in loader.plan.decisions if d.applied}


@pytest.mark.heavy
@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_a_function_that_hangs_is_not_waited_for(executor: str, source: cedar.Pipeline) -> None:
    done = threading.Event()
    calls: list[int] = []

    def hangs(x: int) -> int:
        calls.append(x)
        if x == 0:
            done.wait(LIMIT * 4)
        return x

    p = source.map(hangs, "x", dtype=int).select("x").batch(8)
    with p.loader(executor=executor, workers=1, timeout=0.2) as loader:
        assert loader._epochs.job.plans.first_rows.rewrites(loader.plan), "a column is not read"
        with pytest.raises(cedar.WorkerError):
            list(loader)
        done.set()
    assert calls.count(0) <= 3, "once for the audit, then by the run"
