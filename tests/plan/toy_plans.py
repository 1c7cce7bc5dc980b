"""Pipelines and plans of them, made of chosen steps, for tests of saved plans."""

from __future__ import annotations

import pyarrow as pa

import cedar
from cedar import col
from cedar.plan.data import Decision, Plan, Prediction
from cedar.plan.graph import Scan, walk
from cedar.plan.saved import plan_from, text_of
from cedar.plan.steps import Cache, DropResults, KeepOrder, Place, PushColumns, PushFilter, Reorder
from cedar.plan.steps.step import facts_of
from cedar.plan.steps.sweep import Sweep, Taken, replay


def decode(x):
    return x + 1


def rows(n=20):
    return cedar.from_arrow(pa.table({name: pa.array(range(n), pa.int64()) for name in ("x", "y", "z", "w")}))


def written():
    """from_arrow, map, filter, with_columns, shuffle, select, batch."""
    mapped = rows().map(decode, "x", into="u", dtype=int).filter(col("y") > 3)
    columns = mapped.with_columns(a=col("u") + 1, b=col("y") * 2, c=col("y")).shuffle(seed=3)
    return columns.select("x", "y", "z", "u", "a", "c").batch(4)


def stepped(root, *steps, **more):
    """A plan of steps, each (number of its node, step), one pass each."""
    sweeps = tuple(Sweep((Taken(at, step),), type(step).downward) for at, step in steps)
    made = replay(facts_of(root, root, lambda node: False, exact=False), sweeps)
    return Plan(root, made, method="exact", sweeps=sweeps, **more)


def moved(root=None, place="processes"):
    """A filter that runs before a map, which runs in processes."""
    places = ["", "", place, *[""] * 4]
    return stepped(root or written().node, (2, Reorder((1, 0))), (6, Place(tuple(places))))


def rewritten():
    """A plan with a scan, a moved filter, a smaller with_columns, places and a cache put in."""
    prediction = Prediction(12345.678, "cores", {"one more core": 1 / 3})
    decisions = (
        Decision("push_filter", "filter below map(decode)", True),
        Decision("cache", "map(decode)", False, "random"),
    )
    steps = [
        (2, Reorder((1, 0))), (1, PushFilter()), (2, DropResults((1,))), (0, PushColumns(("x", "y", "z"))),
        (2, Cache(1)), (6, Place(("", "processes", "", "", "", "", ""))), (6, KeepOrder()),
    ]  # fmt: skip
    more = {"decisions": decisions, "prediction": prediction, "workers": 2, "executor": "threads"}
    return stepped(written().node, *steps, **more)


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
