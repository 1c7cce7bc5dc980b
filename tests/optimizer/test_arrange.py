"""The operators that a search may reorder, and the graph in their new order."""

from __future__ import annotations

import cedar
from cedar import col
from cedar.optimizer.search import search
from cedar.plan.data import Budget
from tests.optimizer.toy_profiles import facts_of, figures, names
from tests.optimizer.toy_searches import BOTH, ROWS, clean, work


def test_inserted_selections_for_the_order_fall_away_but_for_the_last():
    from cedar.operators.expressions import select
    from cedar.plan.graph import Node

    root = cedar.from_items(ROWS).map(work, "a").filter(col("c") > 0).node
    found = {0: figures(1e-6), 1: figures(1e-4), 2: figures(1e-7, keep=0.1)}
    facts = facts_of(root, found)
    inner = Node(select(*reversed(root.inputs[0].schema)), (root.inputs[0],))
    physical = Node(select("a"), (Node(root.operator, (inner,), root.site, origin=root),))
    chosen = search(physical, facts, Budget(), ("threads",), 4)
    assert [name.split("(")[0] for name in names(chosen.root)[1:]] == ["filter", "map", "select"]
    assert chosen.root.origin is None
    assert chosen.root.place == "threads"


def test_stream_operators_and_shared_nodes_hold_still():
    shared = cedar.from_items(ROWS).map(work, "a").filter(col("c") > 0)
    root = cedar.concat(shared.map(clean, "b"), shared).shuffle().map(work, "a").filter(col("d") > 0).batch(2).node
    found = {i: figures(1e-6 if "filter" in n else 1e-4, keep=0.1 if "filter" in n else 1.0) for i, n in
             enumerate(names(root))}  # fmt: skip
    chosen = search(root, facts_of(root, found), Budget(), BOTH, 4)
    short = [name.split("(")[0] for name in names(chosen.root)]
    assert short[1:3] == ["filter", "map"]
    assert short[3:] == ["map", "concat", "shuffle", "filter", "map", "batch"]
    concat = chosen.root.inputs[0].inputs[0].inputs[0].inputs[0]
    assert concat.operator.name == "concat"
    assert concat.inputs[0].inputs[0] is concat.inputs[1]


def test_what_gains_nothing_stays():
    root = cedar.from_items(ROWS).map(work, "a").filter(col("c") > 0).filter(col("b") > 0).node
    found = {0: figures(1e-3), 1: figures(1e-6), 2: figures(1e-6, keep=0.9), 3: figures(1e-6, keep=0.5)}
    chosen = search(root, facts_of(root, found), Budget(), ("threads",), 4)
    assert names(chosen.root) == names(root)
    assert chosen.decisions == ()
