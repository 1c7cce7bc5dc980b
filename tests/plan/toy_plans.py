"""Pipelines and plans of them, put together by hand, for tests of saved plans."""

from __future__ import annotations

from dataclasses import replace

import cedar
from cedar import col
from cedar.operators.cache import Cache
from cedar.plan.data import Decision, Plan, Prediction
from cedar.plan.graph import Node, walk
from cedar.plan.saved import plan_from, text_of
from cedar.plan.scan import Scan


def decode(x):
    return x + 1


def rows(n=20):
    return cedar.from_items([{"x": i, "y": i, "z": i} for i in range(n)])


def written():
    """from_items, map, filter, with_columns, shuffle, batch."""
    mapped = rows().map(decode, "x", into="u", dtype=int).filter(col("y") > 3)
    return mapped.with_columns(a=col("u") + 1, b=col("y") * 2, c=col("y")).shuffle(seed=3).batch(4)


def stacked(logical, *operators, places=()):
    """A plan of one chain: ordinals, or (ordinal, operator), or an operator that is put in."""
    nodes = list(walk(logical))
    current = ()
    for number, item in enumerate(operators):
        place = dict(places).get(number, "")
        if isinstance(item, int):
            node = nodes[item]
            made = Node(node.operator, current, node.site, origin=node, place=place)
        elif isinstance(item, tuple):
            made = Node(item[1], current, nodes[item[0]].site, origin=nodes[item[0]], place=place)
        else:
            made = Node(item, current, place=place)
        current = (made,)
    return Plan(logical, current[0], method="exact")


def rewritten():
    """A plan with a scan, a moved filter, a smaller with_columns, places, a cache and a selection put in."""
    root = written().node
    nodes = list(walk(root))
    scan = Scan(nodes[0].operator.source, ("x", "y", "z"), (nodes[2],))
    smaller = replace(nodes[3].operator, items=nodes[3].operator.items[::2])
    order = (0, scan), 1, Cache("memory"), (3, smaller), 5 - 1, 5
    plan = stacked(root, *order, places=((1, "processes"),))
    prediction = Prediction(
        12345.678, "cores", {"cores": 1 / 12345.678, "GIL": 1e-5}, {1: 2 / 3e6}, {"one more core": 1 / 3}
    )
    decisions = (
        Decision("push_filter", "filter below map(decode)", True),
        Decision("cache", "map(decode)", False, "random"),
    )
    return replace(plan, decisions=decisions, prediction=prediction, workers=2, executor="threads")


def shape(plan):
    """What a plan runs, in words that compare."""
    numbers = {id(node): i for i, node in enumerate(walk(plan.logical))}
    found = []
    place = {id(node): i for i, node in enumerate(walk(plan.root))}
    for node in walk(plan.root):
        scan = node.operator if isinstance(node.operator, Scan) else None
        where = [numbers[id(n.logical)] for n in scan.where] if scan else None
        ordinal = numbers.get(id(node.logical))
        parts = [getattr(node.operator, name, None) for name in ("items", "names", "pairs", "n", "where", "columns")]
        text = [repr(part) for part in parts] if scan is None else [where, scan.columns]
        found.append([ordinal, type(node.operator).__name__, text, node.place, [place[id(c)] for c in node.inputs]])
    return found


def loaded(plan, pipeline=None):
    return plan_from(text_of(plan), pipeline or cedar.Pipeline(plan.logical))
