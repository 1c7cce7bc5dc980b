"""Pipelines and figures for searches, and the best of all plans by brute force."""

from __future__ import annotations

import itertools

from hypothesis import strategies as st

import cedar
from cedar import col
from cedar.optimizer.arrange import find_precedence
from cedar.plan import graph
from cedar.plan.steps.order import may_swap
from tests.optimizer.toy_profiles import all_paths, figures

ROWS = [{"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}]
BOTH = ("threads", "processes")
SIZES = st.sampled_from([8.0, 100.0, 30_000.0])


def work(x):
    return x


def clean(x):
    return x


def late(x):
    return x > 0


@st.composite
def pipelines(draw, most=5, least=1):
    """A pipeline of maps and filters on four columns, its figures, and how many row operators it has."""
    pipeline, found = cedar.from_items(ROWS), {0: figures(1e-6, columns=dict.fromkeys("abcd", draw(SIZES)))}
    for i in range(1, draw(st.integers(least, most)) + 1):
        reads, writes = draw(st.sampled_from("abcd")), draw(st.sampled_from("abcd"))
        cpu = draw(st.floats(1e-7, 1e-3))
        wall, gil = cpu + draw(st.sampled_from([0.0, 0.0, 1e-3])), draw(st.sampled_from([0.0, 0.3, 1.0]))
        kind = draw(st.sampled_from(["map", "filter", "expression"]))
        if kind == "map":
            pipeline = pipeline.map(work, reads, into=writes)
            found[i] = figures(cpu, wall, gil=gil, columns={writes: draw(SIZES)})
        else:
            pipeline = pipeline.filter(late, reads) if kind == "filter" else pipeline.filter(col(reads) > 0)
            found[i] = figures(cpu, wall, keep=draw(st.floats(0.01, 1)), gil=gil)
    return pipeline.node, found


def precedences_of(model, facts):
    return [find_precedence(cost.chain, facts, may_swap) for cost in model.costs]


def least(model, precedences):
    """The largest use of the best of all plans."""
    ways = [list(all_paths(c, p)) for c, p in zip(model.costs, precedences, strict=True)]
    return min(max(sum(uses) for uses in zip(model.base, *chosen, strict=True)) for chosen in itertools.product(*ways))


def gil_bound():
    root = cedar.from_items(ROWS).map(work, "a").filter(col("b") > 0).node
    return root, {0: figures(1e-7, columns={"a": 8.0, "b": 8.0}), 1: figures(1e-4, gil=1.0), 2: figures(1e-7)}


def places(chosen):
    return {node.operator.name: node.place for node in graph.walk(chosen.root)}
