"""Rows that pass each edge of a graph, by what was measured of the sources."""

from __future__ import annotations

import pytest

import cedar
from cedar.optimizer.flow import find_flow, find_loads
from cedar.plan import graph
from tests.operators.toy_transforms import Refuse
from tests.optimizer.toy_costs import first, two_maps
from tests.optimizer.toy_profiles import facts_of, figures

ROWS = [{"a": 1.0}]


def rates(root, measured):
    facts = facts_of(root, measured)
    flow = find_flow(root, facts, find_loads(root, facts))
    return [flow.rate[id(node)] for node in graph.walk(root)]


@pytest.mark.parametrize("second", [None, figures(1e-6, rows=4)])
def test_a_zip_reads_as_many_rows_of_each_side(second):
    left, right = cedar.from_items(ROWS), cedar.from_items([{"b": 1.0}])
    root = cedar.zip(left, right).map(abs, "a").node
    measured = {0: figures(1e-6, rows=1000), 3: figures(1e-3)} | ({} if second is None else {1: second})
    assert rates(root, measured) == [0.5, 0.5, 0.5, 0.5]  # so what is above it has its weight


def test_a_concat_reads_what_was_measured():
    root = cedar.concat(cedar.from_items(ROWS), cedar.from_items(ROWS)).node
    assert rates(root, {0: figures(1e-6, rows=30), 1: figures(1e-6, rows=10)}) == [0.75, 0.25, 1.0]


def test_two_sides_of_one_source_read_it_once():
    source = cedar.from_items(ROWS)
    root = cedar.zip(source, source.map(abs, "a", into="b").select("b")).node
    assert rates(root, {0: figures(1e-6, rows=30)})[0] == 1.0


@pytest.mark.parametrize(("workers", "gil"), [(4, 1.0), (16, 0.0)])
def test_a_wall_time_that_others_explain_is_no_waiting(workers, gil):
    root = two_maps()
    crowded = {i: figures(10e-6, wall=39e-6, gil=gil) for i in range(4)}
    alone = facts_of(root, crowded, workers=1)
    assert find_loads(root, alone)[id(root)].wait == pytest.approx(29e-6)
    assert find_loads(root, facts_of(root, crowded, workers=workers))[id(root)].wait == 0


def test_what_only_computes_waits_for_nothing():
    root = cedar.from_items(ROWS).map(first, "a").map(Refuse(7), "a").node
    facts = facts_of(root, {i: figures(10e-6, wall=900e-6) for i in range(3)}, workers=1)
    found = find_loads(root, facts)
    assert found[id(root)].wait == 0
    assert found[id(root.inputs[0])].wait == pytest.approx(890e-6), "a function of the user's may"
