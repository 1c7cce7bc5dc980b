"""Lowering: which stages follow from a graph, and what runs where."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pyarrow as pa
import pytest

import cedar
from cedar import col
from cedar.datasets.base import Split
from cedar.plan import graph
from cedar.plan.graph import Node
from cedar.plan.lower import Choice, lower
from cedar.plan.physical import Branch
from tests.plan.toy_stages import numbers, plus
from tests.plan.verify import verify


def test_a_concat_of_sources_is_read_as_one_where_somebody_has_windows():
    p = cedar.concat(numbers().select("x"), numbers().select("x")).shuffle(window=10)
    (read,) = (stage for stage in lower(p.node, Choice()).stages if stage.kind == "read")
    assert [segment.links[-1] for segment in read.segments] == [Branch(4, 0), Branch(4, 1)]
    plain = lower(cedar.concat(numbers(), numbers()).node, Choice())
    assert [stage.kind for stage in plain.stages] == ["read", "read", "stream", "deal", "task"]


def test_what_several_draw_from_is_one_stage():
    p = numbers().map(plus, "x", dtype=int)
    physical = lower(cedar.zip(p.select("x"), p.select("y")).node, Choice())
    read, small = (i for i, stage in enumerate(physical.stages) if stage.kind in ("read", "task") and i < 2)
    assert [stage.inputs for stage in physical.stages if read in stage.inputs] == [(read,)]
    assert len([stage for stage in physical.stages if small in stage.inputs]) == 2


def test_a_place_is_a_stage_of_its_own_above_the_ranks_too():
    p = numbers().batch(4).with_columns(a=col("x")).with_columns(b=col("x"))
    root = dataclasses.replace(p.node, place="processes", origin=p.node)
    physical = lower(root, Choice(), p.node)
    verify(physical)
    assert [stage.place for stage in physical.stages[-2:]] == ["", "processes"]


class Many:
    def splits(self) -> list[Split]:
        return [Split(file=i, part=i, rows=1) for i in range(16)]

    def read(self, split: Split) -> Iterator[pa.Table]:
        yield pa.table({"x": [split.part]})


@pytest.mark.parametrize(("workers", "stages"), [(2, 1), (3, 2)])
def test_another_process_that_reads_enough_splits_does_all_of_it(workers, stages):
    p = cedar.from_source(Many()).map(plus, "x", dtype=int)
    source = dataclasses.replace(p.node.inputs[0], place="processes", origin=p.node.inputs[0])
    root = dataclasses.replace(p.node, inputs=(source,), place="processes", origin=p.node)
    physical = lower(root, Choice(workers=lambda place: workers), p.node)
    assert sum(stage.kind == "task" and bool(stage.operators) for stage in physical.stages) == stages - 1


def test_what_follows_a_cache_in_another_process_is_done_by_the_tasks_that_read():
    """The place of ``cache()`` itself decides nothing: it sits where rows are read."""
    node = cedar.from_source(Many()).map(plus, "x", dtype=int).cache().filter(col("x") > 3).node
    made = list(graph.walk(node))
    below: list[Node] = []
    for each, place in zip(made, ("processes", "processes", "threads", "processes"), strict=True):
        below = [dataclasses.replace(each, inputs=tuple(below), place=place, origin=each)]
    physical = lower(below[0], Choice(), node)
    assert [stage.kind for stage in physical.stages if stage.place == "processes"] == ["read"]


@pytest.mark.parametrize("place", ["", "threads"])
def test_places_of_the_runs_own_executor_are_those_of_the_run(place):
    p = cedar.from_source(Many()).map(plus, "x", dtype=int)
    source = dataclasses.replace(p.node.inputs[0], place=place, origin=p.node.inputs[0])
    root = dataclasses.replace(p.node, inputs=(source,), origin=p.node)
    for executor, stages in (("threads", 2), ("dask", 1)):
        physical = lower(root, Choice(executor, workers=lambda place: 2), p.node)
        assert physical == lower(p.node, Choice(executor, workers=lambda place: 2))
        assert sum(bool(stage.operators or stage.segments) for stage in physical.stages) == stages
