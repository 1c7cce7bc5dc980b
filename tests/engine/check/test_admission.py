"""Which plans may run, and what it takes to say so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import col
from cedar.engine.background_calls import Calls
from cedar.engine.binding import Binding
from cedar.engine.check.admission import Admission
from cedar.engine.check.check import check_effects
from cedar.operators.base import Env
from cedar.plan.data import Plan
from cedar.plan.graph import Node

called: list[int] = []


def seen(y: int) -> int:
    called.append(y)
    return y + 1


def without_the_top(root: Node) -> Plan:
    return replace(Plan.as_written(root), root=root.inputs[0])


@pytest.fixture
def source(tmp_path: Any) -> cedar.Pipeline:
    pq.write_table(pa.table({"x": range(40), "y": [i % 7 for i in range(40)]}), tmp_path / "t.parquet")
    return cedar.read_parquet(str(tmp_path / "t.parquet"))


def admission(pipeline: cedar.Pipeline, given: bool = False) -> Admission:
    return Admission(Binding(pipeline.node, None, Env()), 1, given)


def test_a_plan_that_loses_rows_rewrites_and_is_refused_by_what_is_declared(source: cedar.Pipeline) -> None:
    p = source.filter(col("y") > 2)
    asked, bad = admission(p), without_the_top(p.node)
    assert asked.rewrites(bad)
    assert asked.declared(bad) is not None
    assert not asked.rewrites(asked.written)
    assert asked.declared(asked.written) is None


def test_functions_are_called_where_a_run_lets_them_be_and_not_before(source: cedar.Pipeline) -> None:
    p = source.map(seen, "y", into="z", dtype=int).filter(col("y") > 2)
    called.clear()
    asked, bad = admission(p), without_the_top(p.node)
    assert asked.declared(asked.written) is None
    assert not called
    difference = asked.sampled(bad, 8, Calls(inline=False))
    assert difference is not None
    assert asked.sampled(asked.written, 8, Calls(inline=False)) is None
    assert called


def test_a_plan_is_compared_once_for_all_loaders_of_a_pipeline(
    source: cedar.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Plan] = []

    def checked(binding: Binding, plan: Plan, world: int = 1, **how: Any) -> Any:
        calls.append(plan)
        return check_effects(binding, plan, world, **how)

    monkeypatch.setattr("cedar.engine.check.admission.check_effects", checked)
    p = source.filter(col("y") > 2)
    one, other = p.batch(4), p.batch(5)
    for pipeline, compared in ((one, 1), (one, 1), (other, 2), (one, 2)):
        with pipeline.loader() as loader:
            next(iter(loader))
        assert len(calls) == compared
