"""Bindings: kernels, samples and physical plans of a pipeline, made once, and what is kept of them from run to run."""

from __future__ import annotations

import pyarrow as pa

import cedar
from cedar.engine.binding import SAMPLE_ROWS, Binding
from cedar.operators.base import Env


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
