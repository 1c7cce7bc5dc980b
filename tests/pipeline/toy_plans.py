"""What the tests of plans share: pipelines, and their plans without places in code."""

from __future__ import annotations

import re

import cedar
from cedar import col
from cedar.plan.data import Decision, Plan, Prediction
from cedar.plan.graph import Node, Scan, walk
from cedar.profile import Machine, OperatorProfile, Profile


def rows(n=100):
    return cedar.from_items([{"x": i, "y": i} for i in range(n)])


def plan(pipeline):
    """The plan without places in code, which move."""
    return placeless(pipeline.explain())


def placeless(text):
    return re.sub(r" +\S+\.py:\d+$", "", text, flags=re.MULTILINE)


def decode(x):
    return x + 1


def common(log):
    """The pipeline that every worker has, its rewritten graph, and what was measured of it."""
    pipeline = log.filter(col("label") == 1).map(decode, "x", into="u", dtype=int).shuffle(seed=1).batch(32)
    nodes = list(walk(pipeline.node))
    current = Node(Scan(nodes[0].operator.source, ("label", "x"), (nodes[1],)), origin=nodes[0], place="threads")
    for node, place in zip(nodes[2:], ("processes", "", ""), strict=True):
        current = Node(node.operator, (current,), origin=node, place=place)
    figures = {
        0: OperatorProfile("read_parquet(log)", 3, 3000, 3e-6, 3e-6, 1, 0, 24),
        1: OperatorProfile("filter", 3, 3000, 1e-7, 1e-7, 0.21, 24, 24),
        2: OperatorProfile("map(decode)", 3, 630, 1.23e-4, 1e-4, 1, 24, 32),
    }
    profile = Profile("", figures, Machine(2, 1 << 30), 3000, 0.1)
    decisions = (
        Decision("scan_columns", "read_parquet(log)", False, "all columns are delivered"),
        Decision("push_filter", "filter below shuffle", True, "rows are ordered by their keys"),
        Decision("scan_filter", "filter into read_parquet(log)", True, "row groups whose statistics exclude it are "
                 "not read at all"),
    )  # fmt: skip
    prediction = Prediction(12345.6, "cores", more={"one more core": 0.38, "twice the storage": 0.001})
    return pipeline, Plan(pipeline.node, current, decisions, prediction, "exact", "threads", 2, profile)
