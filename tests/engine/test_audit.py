"""No plan runs unaudited: where a rule or a plan has a fault, the pipeline as the user wrote it is what counts."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import col
from cedar.core.block import Block
from cedar.core.cursor import Keys
from cedar.engine.audit import AuditBudget, difference
from cedar.operators.expressions import WithColumns
from cedar.optimizer import rules
from cedar.optimizer.planner import AutoPlanner
from cedar.optimizer.rewrite import Change
from cedar.pipeline.planning import initial_plan
from cedar.plan import graph
from cedar.plan.data import Plan
from cedar.plan.graph import Node, Scan, walk
from cedar.plan.lower import lower
from cedar.plan.splits import TolerantSplits
from cedar.plan.steps import Facts, Refusal, Step
from tests.toy_blocks import block
from tests.toy_plans_random import audited, outcome


def test_audits_take_a_nan_for_a_nan() -> None:
    both = np.array([np.nan, -np.nan, 0.0])
    columns = [both, pa.array(both), both.astype(np.float32)]
    for column in columns:
        blocks = [Block({"x": column[i : i + 1]}, Keys(np.arange(1))) for i in range(3)]
        assert difference([blocks[0]], [blocks[1]]) is None
        assert difference([blocks[0]], [blocks[2]]) is not None
    zeros = [Block({"x": np.array([zero])}, Keys(np.arange(1))) for zero in (0.0, -0.0)]
    assert difference(zeros[:1], zeros[1:]) is not None


def test_how_rows_are_cut_into_blocks_does_not_count() -> None:
    whole = block(x=[1, 2, 3], l=[[1], [], [2, 3]])
    assert difference([whole], [whole.slice(0, 1), whole.slice(1, 1), whole.slice(1, 3)]) is None


@pytest.mark.parametrize(
    ("done", "written", "says"),
    [
        (block(x=[1, 2, 3]), block(x=[1, 5, 3]), "column 'x': row 1: 2 in the plan, 5 as written"),
        (block(x=[1, 2, 3]), block(x=[1.0, 2.0, 3.0]), "column 'x': int64 in the plan, double as written"),
        (block(x=[1, 2, 3]), block(x=[1, 2]), "3 row(s) in the plan, 2 as written"),
        (block(x=[1, 2, 3]), block(x=[1, 2, 3]).slice(0, 0), "3 row(s) on one side, none on the other"),
        (block(x=[7, 7]), block(x=[7, 7]).take(np.array([1, 0])), "other rows, or in another order"),
        (block(x=[1], y=[2]), block(x=[1]), "columns ['y'] are on one side only"),
    ],
)
def test_the_first_difference_is_told(done: Block, written: Block, says: str) -> None:
    assert difference([done], [written]) == says


def budget(pipeline: cedar.Pipeline) -> AuditBudget:
    return pipeline.loader(plan=initial_plan(pipeline.node), executor="inline")._epochs.job.plans.audits


def test_audits_take_their_share_of_the_time() -> None:
    audits = budget(cedar.from_items([{"x": i} for i in range(10)]).with_columns(y=col("x") + 1).batch(2))
    audits._opened = time.perf_counter() - 3000.0  # 30 s for audits
    assert audits.due(29.0)
    assert not audits.due(40.0), "the first rows took as long"
    audits.record(10.0, done=True)
    assert audits.due(1.0)
    audits.record(15.0, done=False)
    assert not audits.due(1.0)
    assert 4.0 < audits.seconds < 6.0
    audits._opened -= 3000.0
    assert audits.due(1.0), "35 s are left, and the next one may take 30"
    audits.restart()
    assert not audits.due(1.0)
    audits.share = 1.0
    assert audits.due(40.0)


def test_what_cannot_be_read_again_is_not_audited() -> None:
    audits = budget(cedar.from_iterable(lambda: ({"x": i} for i in range(10)), dtypes={"x": int}).batch(2))
    audits.share = 1.0
    assert not audits.due(0.0)


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


@dataclasses.dataclass(frozen=True)
class Faulty(Step):
    """A step that does something else than it should."""

    step: Step
    change: Any

    def check(self, graph: Node, facts: Facts) -> Refusal | None:
        return self.step.check(graph, facts)

    def apply(self, graph: Node, facts: Facts) -> Node:
        changed: Node = self.change(self.step.apply(graph, facts))
        return changed


def rule_that(name: str, change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a rule of that name, with a fault, in the place of ours."""
    ours = getattr(rules, name)

    def faulty(node: Node, facts: Any) -> Any:
        found = ours(node, facts)
        return dataclasses.replace(found, step=Faulty(found.step, change)) if isinstance(found, Change) else found

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
    assert "the plan was changed" in caplog.text


def test_where_no_one_rule_is_to_blame_the_pipeline_runs_as_written(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = outcome(pipeline(path).loader(plan="off", executor="inline"))
    rule_that("scan_columns", fewer_columns, monkeypatch)
    rule_that("limit", FAULTS[2][1], monkeypatch)
    loader = pipeline(path).loader(executor="inline")
    assert outcome(loader) == wanted
    assert any(d.rule == "plan" and not d.applied for d in loader.plan.decisions)


def test_a_plan_that_is_given_is_checked_too(path: str) -> None:
    p = pipeline(path)
    good = initial_plan(p.node)
    scan = next(n for n in walk(good.root) if isinstance(n.operator, Scan))
    bad = graph.replace(good.root, lambda n: no_filter(n) if isinstance(n.operator, Scan) else None)
    assert scan.operator.where  # type: ignore[attr-defined]
    for root, taken in ((good.root, True), (bad, False)):
        loader = p.loader(plan=Plan(p.node, root, good.decisions, method="loaded"), executor="inline")
        assert outcome(loader) == outcome(p.loader(plan="off", executor="inline"))
        assert loader._epochs.job.plans.rewrites is taken


def test_the_planner_takes_no_plan_of_which_nothing_can_be_said(path: str) -> None:
    p = pipeline(path)
    made = AutoPlanner(p.node, lambda _: False, TolerantSplits(p.node))
    plan = made.admit(made.begin(), lambda plan: cedar.plan.data.Difference("whatever"))
    assert plan.root is p.node


# ---- audits ----------------------------------------------------------------------------------------------------------


@pytest.mark.heavy
@pytest.mark.parametrize("executor", ["inline", "threads"])
@pytest.mark.parametrize("format", ["numpy", "arrow", "torch"])
def test_an_audit_asks_the_pipeline_as_written_and_not_the_plan(
    executor: str, format: Any, path: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan has lost a filter: run in whatever order, what it has gives the wrong rows."""
    monkeypatch.setattr("cedar.engine.binding.lower", lower)  # nor does anyone else see it
    p = cedar.read_parquet(path).filter(col("x").is_not_null()).shuffle(window=50).select("id", "z").batch(8)
    plan = initial_plan(p.node)
    bad = graph.replace(plan.root, lambda n: no_filter(n) if isinstance(n.operator, Scan) else None)
    wanted = outcome(p.loader(plan="off", executor="inline", format=format))
    loader = p.loader(plan=Plan(p.node, bad, method="loaded"), executor=executor, workers=2, format=format)
    loader._epochs.job.plans._admitted = True  # as if the check had seen nothing
    audited(loader)
    assert outcome(loader) == wanted
    assert loader._epochs.job.metrics.differences
    assert not loader._epochs.job.plans.rewrites
    assert "different rows than the pipeline as written" in caplog.text


def test_audits_take_their_share_of_the_time_and_find_a_good_plan_good(path: str) -> None:
    p = pipeline(path)
    loader = p.loader(plan=initial_plan(p.node), executor="inline", format="torch")
    audited(loader)
    assert outcome(loader) == outcome(p.loader(plan="off", executor="inline", format="torch"))
    assert loader._epochs.job.metrics.audited
    assert not loader._epochs.job.metrics.differences
