"""What is proved of a plan by what operators declare: moves that change nothing, and none that does."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import col
from cedar.engine.binding import Binding
from cedar.engine.check.check import Unclear, check_effects
from cedar.engine.check.sample_rows import made_up
from cedar.operators.base import Env
from cedar.operators.image import decode, horizontal_flip, to_float
from cedar.pipeline.planning import plan_of
from cedar.plan import graph
from cedar.plan.data import Plan
from cedar.plan.graph import Node
from cedar.plan.lower import Choice, lower
from cedar.plan.meaning import TermTable, proof
from cedar.plan.scan import Scan
from cedar.tasks.scanning import ScanReader
from tests.toy_pipelines import build
from tests.toy_plans_random import plans_of


def proved(plan: Node, p: cedar.Pipeline, on_error: Any = None) -> bool:
    choice = Choice(on_error=on_error)
    return proof(lower(plan, choice, p.node), lower(p.node, choice), TermTable(on_error)) is not None


@pytest.fixture
def source(tmp_path: Any) -> cedar.Pipeline:
    index = np.arange(60)
    pq.write_table(pa.table({"x": index, "y": index % 7, "z": index * 2.0}), tmp_path / "t.parquet", row_group_size=10)
    return cedar.read_parquet(str(tmp_path / "t.parquet"))


def plus(x: int) -> int:
    return x + 1


def swapped(p: cedar.Pipeline, number: int) -> Node:
    """The graph of a chain with operator ``number`` and the one above it in each other's place."""
    chain = list(graph.walk(p.node))
    chain[number], chain[number + 1] = chain[number + 1], chain[number]
    below = chain[0]
    for node in chain[1:]:
        below = dataclasses.replace(node, inputs=(below,), origin=node)
    return below


SAME: list[Callable[[cedar.Pipeline], cedar.Pipeline]] = [
    lambda p: p.map(plus, "x", dtype=int).filter(col("y") > 2),
    lambda p: p.filter(col("x") > 2).filter(col("y") > 2),
    lambda p: p.with_columns(a=col("x") + 1).with_columns(b=col("y") + 1).select("a", "b"),
    lambda p: p.shuffle().filter(col("y") > 2),
    lambda p: p.shuffle().map(plus, "x", dtype=int),
    lambda p: p.map(plus, "x", dtype=int, random=False).drop("z"),
    lambda p: p.map(plus, "x", dtype=int).batch(7, last="keep"),
    lambda p: p.map(lambda x, rng: x, "x", random=True, dtype=int).batch(7),
    lambda p: p.select("x", "z").batch(7),
    lambda p: p.map(plus, "x", dtype=int).filter(col("y") > 2).map(lambda row: row).batch(7).map(lambda batch: batch),
]
OTHERS: list[Callable[[cedar.Pipeline], cedar.Pipeline]] = [
    lambda p: p.map(plus, "x", dtype=int).filter(col("x") > 2),
    lambda p: p.map(plus, "x", dtype=int).with_columns(y=col("x") + 1),
    lambda p: p.take(9).filter(col("y") > 2),
    lambda p: p.filter(col("y") > 2).take(9),
    lambda p: p.shuffle(by="y", interleave=2).filter(col("x") > 2),
    lambda p: p.take(30).shuffle(),
    lambda p: p.shuffle(window=9).filter(col("y") > 2).shuffle(window=9),  # whose windows count what is not dropped yet
    lambda p: p.skip(3).take(9),
    lambda p: p.with_columns(a=col("x") + 1).with_columns(b=col("y") + 1),  # in another order of columns
    lambda p: p.with_columns(a=col("x") + 1).with_columns(b=col("y") + 1).map(lambda row: row),  # which it may see
    lambda p: p.filter(col("y") > 2).map(plus, "x", dtype=int),  # the function meets other rows, and may fail on them
    lambda p: p.map(plus, "x", dtype=int).take(9),
    lambda p: p.flat_map(lambda x: [x] * 2, "x", into="x", dtype=int).filter(col("y") > 2),
    lambda p: p.map(lambda x, rng: x, "x", random=True, dtype=int).repeat(2),
    lambda p: p.filter(col("y") > 2).batch(7),
    lambda p: p.map(plus, "x", dtype=int).batch(7, last="pad"),  # the function meets the rows that fill up
    lambda p: p.batch(7).map(plus, "x"),  # of whole batches
    lambda p: p.batch(7).shuffle(seed=1),
]


@pytest.mark.parametrize("number", range(len(SAME)))
def test_what_commutes_by_effects_is_proved(number: int, source: cedar.Pipeline) -> None:
    p = SAME[number](source)
    plan = swapped(p, 1)
    assert proved(plan, p)
    assert proved(p.node, p)


@pytest.mark.parametrize("number", range(len(OTHERS)))
def test_what_may_give_other_rows_is_not(number: int, source: cedar.Pipeline) -> None:
    p = OTHERS[number](source)
    assert proved(p.node, p)
    assert not proved(swapped(p, 1), p)


def test_rows_that_are_skipped_are_left_to_the_check_on_rows(source: cedar.Pipeline) -> None:
    p = SAME[0](source)
    assert not proved(swapped(p, 1), p, cedar.Skip())


def test_no_row_is_made_up_for_what_is_proved(source: cedar.Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    p = source.with_columns(z=col("z").fill_null(0.0)).filter(col("z") > 3).select("x", "z").shuffle(seed=1).batch(4)
    plan = plan_of(p.node)
    assert plan.root is not p.node
    monkeypatch.setattr("cedar.engine.check.check._made_up", None)
    assert check_effects(Binding(p.node, None, Env()), plan) is None


FILTERED: list[Callable[[cedar.Pipeline], cedar.Pipeline]] = [
    lambda p: p.filter(col("y") > 2).with_columns(z=col("z") + 1).shuffle(seed=1).batch(4),
    lambda p: p.with_columns(a=col("x") + 1).filter(col("y") > 2).filter(col("z") < 90).select("a", "z"),
    lambda p: p.shuffle().filter(col("y") > 2).select("x").filter(col("x") > 7),
]


@pytest.mark.parametrize("number", range(len(FILTERED)))
def test_of_filters_that_a_scan_does_only_the_scan_is_run(
    number: int, source: cedar.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = FILTERED[number](source)
    plan, binding = plan_of(p.node), Binding(p.node, None, Env())
    scans = binding.proof(plan.root)
    assert scans
    assert all(isinstance(scan.operator, Scan) and scan.operator.where for scan in scans)
    monkeypatch.setattr("cedar.engine.check.check._Check.written", None)
    assert check_effects(binding, plan) is None
    monkeypatch.setattr(ScanReader, "_pruned", lambda self, split: split.start == 0)
    found = check_effects(binding, plan)
    assert found is not None
    assert "read_parquet" in found.what


def test_of_columns_that_no_filter_reads_few_are_made_up(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    many = {f"c{i}": np.arange(60.0) for i in range(40)}
    pq.write_table(pa.table({"x": np.arange(60), **many}), tmp_path / "t.parquet")
    p = cedar.read_parquet(str(tmp_path / "t.parquet")).filter(col("x") > 7).with_columns(c9=col("c9") + col("c8"))
    made: list[int] = []
    monkeypatch.setattr(
        "cedar.engine.check.check.made_up", lambda named, *rest: made.append(len(named)) or made_up(named, *rest)
    )
    assert check_effects(Binding(p.node, None, Env()), plan_of(p.node)) is None
    assert max(made) < 5
    for transform in (to_float(), horizontal_flip()):  # images are moved above batches: nothing is made up for them
        p = cedar.read_files(str(tmp_path / "*.parquet")).map(decode(), "bytes", into="image")
        p = p.map(transform, "image").select("image", "path").batch(4)
        assert Binding(p.node, None, Env()).proof(plan_of(p.node).root) == ()


def test_a_filter_that_may_fail_is_compared_in_the_whole_pipeline(source: cedar.Pipeline) -> None:
    p = source.filter(col("y").cast(pl.Int8) > 2).select("x")
    plan = plan_of(p.node)
    assert any(isinstance(node.operator, Scan) and node.operator.where for node in graph.walk(plan.root))
    assert Binding(p.node, None, Env()).proof(plan.root) is None


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(15))
def test_nothing_is_proved_that_the_check_on_rows_refuses(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of random pipelines, some of them broken: an operator lost, or two in each other's place."""
    draw = random.Random(seed)
    try:
        root = build(draw).pipeline.node
        plans = [plan.root for plan in plans_of(root, draw, 2)]
    except cedar.PipelineError:
        pytest.skip("no such pipeline can be")
    for plan in [*plans, *filter(None, (broken(plan, draw) for plan in [root, *plans, root, root]))]:
        binding = Binding(root, None, Env())
        if binding.proof(plan) is None or plan is root:
            continue
        monkeypatch.setattr(Binding, "proof", lambda self, root: None)
        with contextlib.suppress(Unclear):
            assert check_effects(binding, Plan(root, plan)) is None
        monkeypatch.undo()


def broken(root: Node, draw: random.Random) -> Node | None:
    """The graph with two neighbours swapped, or None where there are none."""
    pairs = [
        node for node in graph.walk(root)
        if len(node.inputs) == 1 and len(node.inputs[0].inputs) == 1 and node is not root
    ]  # fmt: skip
    if not pairs:
        return None
    upper = draw.choice(pairs)
    done: dict[int, Node] = {}
    for node in graph.walk(root):
        inputs = tuple(done[id(child)] for child in node.inputs)
        if node is upper:
            (below,) = node.inputs
            first = dataclasses.replace(node, inputs=(done[id(below.inputs[0])],), origin=node.logical)
            done[id(node)] = dataclasses.replace(below, inputs=(first,), origin=below.logical)
        elif all(a is b for a, b in zip(inputs, node.inputs, strict=True)):
            done[id(node)] = node
        else:
            done[id(node)] = dataclasses.replace(node, inputs=inputs, origin=node.logical)
    return done[id(root)]
