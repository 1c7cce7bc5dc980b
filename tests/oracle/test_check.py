"""The oracle that tells whether a plan is right: what it sees, and what it calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import col
from cedar.datasets.items import IterableSource
from cedar.engine.binding import Binding
from cedar.operators import recsys
from cedar.operators.algebra import length_changing, per_value
from cedar.operators.base import Env
from cedar.pipeline.planning import initial_plan
from cedar.plan.data import Plan
from cedar.plan.graph import Node, walk
from tests.oracle.check import Unclear, check, check_effects
from tests.oracle.sample_rows import SIZES, SampleRows, made_up

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


def test_the_first_check_calls_no_function(path: str) -> None:
    calls: list[int] = []

    def seen(y: int) -> int:
        calls.append(y)
        return y

    p = cedar.read_parquet(path).map(seen, "y", dtype=int).filter(lambda y: seen(y) > 3, "y").filter(col("x") > 2)
    p = p.take(50).select("id").batch(4)
    assert check_effects(Binding(p.node, None, Env()), initial_plan(p.node)) is None
    assert not calls


def test_a_changed_order_is_checked_with_the_functions_on_rows_of_the_source(path: str) -> None:
    """What functions do next to what they declare shows on real rows alone."""
    count = iter(range(10**6))
    p = cedar.read_parquet(path).map(lambda y: next(count), "y", dtype=int).filter(col("u") > 9).batch(4)
    plan = initial_plan(p.node)
    assert check_effects(Binding(p.node, None, Env()), plan) is None
    found = check(Binding(p.node, None, Env()), plan, 64)
    assert found is not None
    assert "not deterministic" in found.what


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
    assert not SampleRows(made, None, IterableSource(list)).selects


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
