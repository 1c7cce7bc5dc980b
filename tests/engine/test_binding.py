"""Bindings: kernels, samples and physical plans of a pipeline, made once, and what is kept of them from run to run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import col
from cedar.core.skip import Skip
from cedar.engine.binding import SAMPLE_ROWS, Binding
from cedar.operators.base import Env
from cedar.pipeline.planning import initial_plan
from cedar.plan.graph import walk
from cedar.plan.lower import content, lower
from cedar.plan.scan import Scan


@pytest.fixture
def p(tmp_path: Path) -> cedar.Pipeline:
    numbers = np.arange(100)
    pq.write_table(pa.table({"x": numbers, "y": numbers / 2, "z": numbers}), tmp_path / "a.parquet")
    read = cedar.read_parquet(str(tmp_path / "*.parquet")).filter(col("x") > 9).with_columns(w=col("y") * 2)
    return read.select("x", "w").batch(8)


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that are lowered."""
    roots: list[Any] = []
    monkeypatch.setattr("cedar.engine.binding.lower", lambda root, *rest: roots.append(root) or lower(root, *rest))
    return roots


def test_a_plan_that_is_made_anew_is_lowered_once(p, lowered):
    first, second = (Binding(p.node, None, Env()).lowered(initial_plan(p.node).root) for _ in range(2))
    assert first == second
    assert first.root is not second.root
    assert len(lowered) == 1


@pytest.mark.parametrize("change", ["policy", "order", "executor", "counts"])
def test_a_run_of_another_kind_lowers_it_anew(p, lowered, change):
    Binding(p.node, None, Env()).lowered(initial_plan(p.node).root)
    on_error = Skip(refill=True) if change == "policy" else None
    counts = (lambda _source, splits, _filters: np.zeros(len(splits), dtype=np.int64)) if change == "counts" else None
    other = Binding(p.node, on_error, Env(), counts=counts)
    other.any_order = change == "order"
    other.lowered(initial_plan(p.node).root, "dask" if change == "executor" else "")
    assert len(lowered) == 2


def test_a_plan_that_fails_the_check_fails_it_each_time(p, monkeypatch):
    def wrong(physical: Any) -> None:
        raise cedar.PlanError("stage 1 of the plan is wrong")

    monkeypatch.setattr("cedar.engine.binding.verify", wrong)
    for _ in range(2):
        with pytest.raises(cedar.PlanError, match="stage 1"):
            Binding(p.node, None, Env()).lowered(initial_plan(p.node).root)


def describe(p: cedar.Pipeline, **changes: Callable[[Any], Any]) -> Any:
    """The words for a graph of a pipeline, in which the nodes of some operators were changed."""
    written, done = walk(p.node), dict[int, Any]()
    for node in written:
        copy = dataclasses.replace(node, inputs=tuple(done[id(child)] for child in node.inputs), origin=node)
        done[id(node)] = changes.get(node.operator.name, lambda copy: copy)(copy)
    return content(walk(done[id(p.node)]), {id(node): i for i, node in enumerate(written)})


def scanned(*columns: str, source: Any = None) -> Callable[[Any], Any]:
    return lambda node: dataclasses.replace(node, operator=Scan(source or node.operator.source, columns))


def test_words_tell_scans_apart(p):
    words = [describe(p), describe(p, read=scanned("x", "y")), describe(p, read=scanned("x", "y", "z"))]
    assert None not in words
    assert len(set(words)) == 3
    assert describe(p) == words[0]


def test_there_are_no_words_for_other_operators_and_places(p):
    other: Any = cedar.read_parquet("elsewhere.parquet").node.operator
    assert describe(p, read=scanned("x", "y", source=other.source)) is None
    assert describe(p, read=lambda node: dataclasses.replace(node, operator=other)) is None
    assert describe(p, filter=lambda node: dataclasses.replace(node, place="processes")) is None
    assert describe(p, filter=lambda node: node.inputs[0]) is None
    assert (
        describe(p, filter=lambda node: dataclasses.replace(node, operator=dataclasses.replace(node.operator))) is None
    )


def test_a_table_without_rows_keeps_its_columns():
    empty = cedar.from_arrow(pa.table({"x": pa.array([], pa.int64())}))
    assert empty.to_arrow().schema.names == ["x"]


def test_samples_are_of_few_rows_and_of_more_where_filters_leave_none() -> None:
    rows = cedar.from_items([{"x": i} for i in range(2000)])
    binding = Binding(rows.map(abs, "x", dtype=int).node, None, Env())
    assert len(binding.sample(binding.root)) == SAMPLE_ROWS
    late = Binding(rows.filter(lambda x: x >= 1000, "x").node, None, Env())
    assert late.sample(late.root).columns["x"].to_pylist()[0] == 1000


def test_a_graph_is_lowered_once_and_its_operators_are_called_as_written() -> None:
    pipeline = cedar.from_items([{"x": 1}]).map(abs, "x", dtype=int).batch(1)
    binding = Binding(pipeline.node, cedar.Skip(max_count=3), Env())
    assert binding.lowered(binding.root) is binding.written
    assert [binding.label(node) for node in binding.nodes][1:] == ["map(abs)", "batch(1)"]
    assert [binding.policy(node) for node in binding.nodes][1] == cedar.Skip(max_count=3)
