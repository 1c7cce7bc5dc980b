"""No plan runs unchecked, and what runs is audited: the pipeline as the user wrote it is what counts."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import col
from cedar.core.skip import Skip
from cedar.engine.binding import Binding
from cedar.engine.check.check import Unclear, check, check_effects
from cedar.engine.check.sample_rows import SIZES, SampleRows, made_up
from cedar.operators import recsys
from cedar.operators.algebra import length_changing, per_value
from cedar.operators.base import Env, RowOperator
from cedar.operators.expressions import WithColumns
from cedar.optimizer import rules
from cedar.optimizer.facts import Change
from cedar.optimizer.planner import AutoPlanner
from cedar.pipeline.planning import plan_of
from cedar.plan import graph
from cedar.plan.data import Plan
from cedar.plan.graph import Node, walk
from cedar.plan.scan import Scan
from cedar.plan.splits import TolerantSplits
from tests.toy_plans_random import audited, outcome

ROWS = 400


@pytest.fixture
def path(tmp_path: Path) -> str:
    index = np.arange(ROWS)
    nulls = pa.array([None if i % 5 == 3 else i % 11 for i in range(ROWS)], pa.int64())
    table = pa.table({"id": index, "x": nulls, "y": index % 7, "z": index * 2.0, "u": index})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=50)
    return str(tmp_path / "t.parquet")


def pipeline(path: str) -> cedar.Pipeline:
    p = cedar.read_parquet(path).with_columns(w=col("z") + 1).filter(col("x").is_not_null())
    return p.map(lambda y: y + 1, "y", dtype=int).take(200).select("id", "x", "y").batch(8)


def rule_that(name: str, change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a rule of that name, with a fault, in the place of ours."""
    ours = getattr(rules, name)

    def faulty(node: Node, facts: Any) -> Any:
        found = ours(node, facts)
        return dataclasses.replace(found, node=change(found.node)) if isinstance(found, Change) else found

    faulty.__name__ = name
    for module in ("cedar.optimizer.rules", "cedar.optimizer.planner"):
        for tuple_ in ("MOVES", "TRIMS", "RULES"):
            held = getattr(__import__(module, fromlist=["x"]), tuple_, ())
            monkeypatch.setattr(f"{module}.{tuple_}", tuple(faulty if r is ours else r for r in held), raising=False)


def fewer_columns(node: Node) -> Node:
    scan = node.operator
    assert isinstance(scan, Scan)
    return dataclasses.replace(node, operator=Scan(scan.source, scan.columns, ()))


def no_filter(node: Node) -> Node:
    scan = node.operator
    assert isinstance(scan, Scan)
    return dataclasses.replace(node, operator=Scan(scan.source, scan.columns, scan.where[:-1]))


def other_items(node: Node) -> Node:
    return node.inputs[0] if isinstance(node.operator, WithColumns) else node


FAULTS = [
    ("scan_filter", no_filter),
    ("scan_columns", fewer_columns),
    ("limit", lambda node: node.inputs[0]),  # what stood below the limit is lost
]


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "change"), FAULTS, ids=[name for name, _ in FAULTS])
def test_a_rule_with_a_fault_is_left_out_by_name(
    name: str, change: Any, path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = outcome(pipeline(path).loader(plan="off", executor="inline"))
    rule_that(name, change, monkeypatch)
    loader = pipeline(path).loader(executor="inline")
    begun = loader.plan
    assert any(d.rule == name and d.applied for d in begun.decisions), "the fault is at work"
    assert outcome(loader) == wanted
    assert any(d.rule == name and not d.applied and d.what == "all of it" for d in loader.plan.decisions)
    assert f"refused  {name}: all of it" in loader.explain()
    assert "the plan is not taken as it was" in caplog.text


def test_where_no_one_rule_is_to_blame_the_pipeline_runs_as_written(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = outcome(pipeline(path).loader(plan="off", executor="inline"))
    rule_that("scan_columns", fewer_columns, monkeypatch)
    rule_that("limit", FAULTS[2][1], monkeypatch)
    loader = pipeline(path).loader(executor="inline")
    assert outcome(loader) == wanted
    assert any(d.rule == "plan" and not d.applied for d in loader.plan.decisions)


def test_a_plan_that_is_given_is_checked_too(path: str) -> None:
    p = pipeline(path)
    good = plan_of(p.node)
    scan = next(n for n in walk(good.root) if isinstance(n.operator, Scan))
    bad = graph.replace(good.root, lambda n: no_filter(n) if isinstance(n.operator, Scan) else None)
    assert scan.operator.where  # type: ignore[attr-defined]
    for root, taken in ((good.root, True), (bad, False)):
        loader = p.loader(plan=Plan(p.node, root, good.decisions, method="loaded"), executor="inline")
        assert outcome(loader) == outcome(p.loader(plan="off", executor="inline"))
        assert loader._plans.rewrites is taken


def test_the_first_check_calls_no_function(path: str) -> None:
    calls: list[int] = []

    def seen(y: int) -> int:
        calls.append(y)
        return y

    p = cedar.read_parquet(path).map(seen, "y", dtype=int).filter(lambda y: seen(y) > 3, "y").filter(col("x") > 2)
    p = p.take(50).select("id").batch(4)
    assert check_effects(Binding(p.node, None, Env()), plan_of(p.node)) is None
    assert not calls


def test_a_sample_that_cannot_be_computed_starts_as_written(path: str) -> None:
    class Whole(RowOperator):
        name = "whole"

        def effects(self) -> cedar.operators.base.Effects:
            return cedar.operators.base.Effects()

        def schema(self, *inputs: Any) -> Any:
            return inputs[0]

        def bind(self, bound: Any) -> Any:
            return lambda block, env: block

    p = cedar.read_parquet(path).filter(col("x") > 2).apply(Whole()).batch(4)
    with pytest.raises(Unclear, match="whole"):
        check_effects(Binding(p.node, None, Env()), plan_of(p.node))
    loader = p.loader(executor="inline")
    next(iter(loader))
    assert not loader._plans.rewrites
    assert "not before it is compared on rows of the run" in loader.explain()


@pytest.mark.parametrize("above", [lambda p: p, lambda p: p.map(lambda batch: batch)])
def test_no_made_up_row_is_shown(path: str, caplog: pytest.LogCaptureFixture, above: Any) -> None:
    """Made-up lists may be empty, and then their columns differ in length, as those of the files never do."""
    p = cedar.read_parquet(path).map(lambda y: [y, y + 1], "y", into="ids", dtype=list[int])
    p = p.with_columns(labels=pl.concat_list(col("ids").list.slice(1), pl.lit(-100))).pack(16, "ids", "labels")
    loader = above(p.batch(4)).loader(executor="inline")
    next(iter(loader))
    assert "RowError" not in loader.explain() + str(loader.report()) + str(loader.plan)
    assert loader._plans.rewrites, "columns that nobody reads are left out"
    assert not caplog.records


@pytest.mark.heavy
def test_a_plan_that_waits_for_rows_of_the_run_is_no_warning(path: str, caplog: pytest.LogCaptureFixture) -> None:
    p = cedar.read_parquet(path).map(lambda y: [y, y + 1], "y", into="ids", dtype=list[int])
    p = p.with_columns(labels=pl.concat_list(col("ids").list.slice(1), pl.lit(-100))).filter(col("id") >= 0)
    p = p.filter(lambda x: True, "id", on_error=Skip()).pack(16, "ids", "labels").batch(4)
    loader = p.loader(executor="inline")
    next(iter(loader))
    assert "not before it is compared on rows of the run)" in loader.explain()
    assert not caplog.records


def test_a_changed_order_is_checked_with_the_functions_on_rows_of_the_source(path: str) -> None:
    """What functions do beside what they declare shows on real rows alone."""
    count = iter(range(10**6))
    p = cedar.read_parquet(path).map(lambda y: next(count), "y", dtype=int).filter(col("u") > 9).batch(4)
    plan = plan_of(p.node)
    assert check_effects(Binding(p.node, None, Env()), plan) is None
    found = check(Binding(p.node, None, Env()), plan, 64)
    assert found is not None
    assert "not deterministic" in found.what


# ---- audits ----------------------------------------------------------------------------------------------------------


@pytest.mark.heavy
@pytest.mark.parametrize("executor", ["inline", "threads"])
@pytest.mark.parametrize("format", ["numpy", "arrow", "torch"])
def test_an_audit_asks_the_pipeline_as_written_and_not_the_plan(
    executor: str, format: Any, path: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan has lost a filter: run in whatever order, what it has gives the wrong rows."""
    monkeypatch.setattr("cedar.engine.binding.verify", lambda plan, written: None)  # nor does anybody else see it
    p = cedar.read_parquet(path).filter(col("x").is_not_null()).shuffle(window=50).select("id", "z").batch(8)
    plan = plan_of(p.node)
    bad = graph.replace(plan.root, lambda n: no_filter(n) if isinstance(n.operator, Scan) else None)
    wanted = outcome(p.loader(plan="off", executor="inline", format=format))
    loader = p.loader(plan=Plan(p.node, bad, method="loaded"), executor=executor, workers=2, format=format)
    loader._plans._admitted = True  # as if the check had seen nothing
    audited(loader)
    assert outcome(loader) == wanted
    assert loader._metrics.differences
    assert not loader._plans.rewrites
    assert "other rows than the pipeline as written" in caplog.text


def test_audits_take_their_share_of_the_time_and_find_a_good_plan_good(path: str) -> None:
    p = pipeline(path)
    loader = p.loader(plan=plan_of(p.node), executor="inline", format="torch")
    audited(loader)
    assert outcome(loader) == outcome(p.loader(plan="off", executor="inline", format="torch"))
    assert loader._metrics.audited
    assert not loader._metrics.differences


def test_audits_take_their_share_of_the_time(path: str) -> None:
    p = pipeline(path)
    plans = p.loader(plan=plan_of(p.node), executor="inline")._plans
    plans._opened = time.perf_counter() - 1000.0  # 30 s for audits
    assert plans.audit_due(29.0)
    assert not plans.audit_due(40.0), "the first rows took as long"
    plans.audit(10.0, None)
    assert plans.audit_due(1.0)
    plans.audit(15.0, None, done=False)  # given up
    assert not plans.audit_due(1.0)
    assert 4.0 < plans.audit_seconds < 6.0
    plans._opened -= 1000.0
    assert plans.audit_due(1.0), "35 s are left, and the next one may take 30"
    assert plans._metrics.audited == 1


# ---- sample rows -----------------------------------------------------------------------------------------------------

KINDS = [
    pa.int8(), pa.uint64(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.large_string(), pa.large_binary(),
    pa.date32(), pa.timestamp("us"), pa.timestamp("ns", "UTC"), pa.time64("us"), pa.duration("ms"), pa.decimal128(9, 2),
    pa.large_list(pa.int32()), pa.large_list(pa.large_list(pa.large_string())), pa.list_(pa.float64(), 3),
    pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.large_string())]))]),
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_rows_are_made_up_of_every_type(kind: pa.DataType) -> None:
    for nulls in (False, True):
        made = made_up({"a": kind, "b": kind}, [], nulls)
        assert made is not None
        for column in made.values():
            assert isinstance(column, pa.Array)
            column.validate(full=True)
            assert column.type == kind
            assert len(column) == sum(SIZES)
            assert (column.null_count > 0) is nulls
            assert len(set(map(repr, column.to_pylist()))) > 1


def test_rows_lie_on_both_sides_of_conditions() -> None:
    p = cedar.from_items([{"x": 1, "s": "a"}]).filter((col("x") > 712) & col("s").is_in(["left", "right"]))
    made = made_up({"x": pa.int64(), "s": pa.large_string()}, list(walk(p.node)), nulls=True)
    assert made is not None
    assert {711, 712, 713, None} <= set(made["x"].to_pylist())  # type: ignore[union-attr]
    assert {"left", "right", None} <= set(made["s"].to_pylist())  # type: ignore[union-attr]


def test_sample_rows_are_read_as_the_source_is() -> None:
    made = made_up({"x": pa.int64(), "s": pa.struct([("a", pa.int64()), ("b", pa.int64())])}, [], nulls=False)
    assert made is not None
    source = SampleRows(made, {"x": pa.int64()}, cedar.read_parquet("no.parquet").node.operator.source)  # type: ignore[attr-defined]
    splits = source.splits()
    assert [split.rows for split in splits] == list(SIZES)
    narrow = source.select(["s.b"])
    (first, *_) = narrow.read(splits[0])
    assert first.columns["s"].type == pa.struct([("b", pa.int64())])  # type: ignore[union-attr]
    assert source.prune(splits[0], pl.col("x") > 10**9)
    assert not source.prune(splits[0], pl.col("x") >= 0)
    assert not hasattr(SampleRows(made, None, object()), "select")


def test_the_planner_takes_no_plan_of_which_nothing_can_be_said(path: str) -> None:
    p = pipeline(path)
    made = AutoPlanner(p.node, lambda _: False, TolerantSplits(p.node))
    plan = made.admit(made.begin(), lambda plan: cedar.plan.planner.Difference("whatever"))
    assert plan.root is p.node


def test_the_order_of_transforms_that_commute_is_compared_without_a_read(path: str) -> None:
    """Those of cedar run on made-up rows; a function that the user marked has a stand-in, which does not commute."""
    p = cedar.from_items([{"ids": [i, i + 1, i + 2]} for i in range(40)])
    for above, below, clear in (
        (recsys.FirstX(2), recsys.SigridHash(1, 100), True),
        (length_changing(lambda ids: ids[:2]), per_value(lambda ids: [i + 1 for i in ids]), False),
    ):
        more: dict[str, Any] = {} if clear else {"dtype": pa.large_list(pa.int64())}
        root = p.map(below, "ids", **more).map(above, "ids", **more).batch(8).node
        batch, top, bottom = root, root.inputs[0], root.inputs[0].inputs[0]
        moved = Node(top.operator, bottom.inputs, top.site, top)
        moved = Node(bottom.operator, (moved,), bottom.site, bottom)
        plan = Plan(root, Node(batch.operator, (moved,), batch.site, batch))
        binding = Binding(root, None, Env(0))
        if not clear:
            with pytest.raises(Unclear, match="stand-ins"):
                check_effects(binding, plan)
        assert check(binding, plan, 20) is None


def test_a_transform_of_the_users_keeps_its_type_in_the_check() -> None:
    class Counted(recsys.Enumerate):
        pass

    p = cedar.from_items([{"ids": [i] * (i % 3 + 1)} for i in range(40)]).map(Counted(), "ids").dedup([["ids"]])
    binding = Binding(p.batch(8).node, None, Env(0))
    assert check_effects(binding, Plan.as_written(binding.root)) is None
