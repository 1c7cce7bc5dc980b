"""The stages that a plan runs in, as text, and what is said of those that read."""

from __future__ import annotations

from dataclasses import replace

import cedar
from cedar.operators.expressions import Select
from cedar.pipeline.explain import explain
from cedar.plan.graph import Node
from tests.pipeline.toy_plans import common, rows


def test_a_plan_warns_of_what_cannot_be_split():
    assert "cannot be split" in cedar.from_iterable(lambda: iter([{"x": 1}])).explain()


def test_a_plan_says_what_a_cache_keeps():
    random = rows().map(lambda x, rng: x, "x", random=True, dtype=int)
    assert "keeps what comes out" not in random.cache("memory").explain()
    mapped = rows().map(lambda x: x, "x", dtype=int).map(lambda x, rng: x, "x", random=True, dtype=int)
    assert "keeps what comes out of map(<lambda>)" in mapped.cache("memory").batch(2).explain()


def test_a_selection_that_the_optimizer_put_in_is_shown(log):
    pipeline, chosen = common(log)
    batch, shuffle = chosen.root, chosen.root.inputs[0]
    kept = Node(Select(("label", "x", "u")), shuffle.inputs)
    root = replace(batch, inputs=(replace(shuffle, inputs=(kept,)),))
    text = explain(pipeline.node, replace(chosen, root=root))
    assert "map(decode) -> select(label, x, u)" in text
    assert "select" not in text.partition("PHYSICAL")[0]
