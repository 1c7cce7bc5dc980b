"""loader(rules=, without=, budget=): the caller's rewrites, those left out, and what a plan may take."""

from __future__ import annotations

import pytest

import cedar
from cedar import col
from cedar.operators.shuffle import Shuffle
from cedar.optimizer.edit import rebuilt
from cedar.optimizer.facts import Change, Refusal
from cedar.plan import graph
from tests.optimizer.plan_lines import line, table


def f(x):
    return x


def pipeline():
    return table("a", "b", rows=40).map(f, "a", dtype=int).shuffle().filter(col("b") > 3).batch(4)


def of(loader):
    return loader._plans.current


def windows(node, facts):
    """Shuffles without a window of their own."""
    if not isinstance(node.operator, Shuffle) or node.operator.window == 16:
        return Refusal("nothing to shuffle") if not node.inputs else None
    return Change(rebuilt(node, node.inputs, facts, Shuffle(node.operator.seed, 16)), facts.label(node), "16 rows")


vars(windows)["measure"] = lambda facts: sum(
    isinstance(n.operator, Shuffle) and n.operator.window != 16 for n in graph.walk(facts.root)
)


def half(node, facts):
    """A rule that is wrong: every other row."""
    if node.operator.name != "batch" or node.inputs[0].operator.name == "take":
        return None
    return rebuilt(node, (graph.Node(cedar.operators.take.Take(4), node.inputs),), facts)


vars(half)["measure"] = lambda facts: -sum(n.operator.name == "take" for n in graph.walk(facts.root))


def test_a_rule_of_the_callers_is_applied_and_told():
    loader = pipeline().loader(executor="inline", rules=(windows,))
    assert "windows: shuffle" in loader.explain()
    assert next(n for n in graph.walk(of(loader).root) if n.operator.name == "shuffle").operator.window == 16


def test_a_rule_of_the_callers_that_changes_rows_is_refused_before_one_is_delivered():
    written = [b["a"].tolist() for b in pipeline().loader(plan="off", executor="inline")]
    with pipeline().loader(executor="inline", rules=(half,)) as loader:
        assert [b["a"].tolist() for b in loader] == written
        assert any(d.rule == "half" and not d.applied for d in of(loader).decisions)


@pytest.mark.parametrize("without", ["push_filter", ("push_filter", "late", "order", "place")])
def test_a_rule_that_is_left_out_is_not_applied(without):
    loader = pipeline().loader(executor="inline", without=without)
    assert line(of(loader).root) == "read -> map(f) -> shuffle -> filter(b > 3) -> batch"
    assert line(of(pipeline().loader(executor="inline")).root).startswith("read[* where b > 3]")


def test_the_budget_is_that_of_the_run():
    loader = pipeline().loader(budget=cedar.Budget(cache="1MiB", cpus=1))
    assert of(loader).cache_bytes == 1 << 20
    assert loader._plans.planner.budget.cpus == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"without": "pushfilter"}, "there are push_filter"),
        ({"without": ["nothing like it"]}, "without='nothing like it'"),
        ({"rules": [3]}, "functions of a node and the facts"),
        ({"rules": [windows, windows]}, "names that no other rule has"),
        ({"budget": 3}, "no Budget"),
        ({"rules": [windows], "plan": "off"}, "for the optimizer"),
        ({"without": "late", "plan": "off"}, "for the optimizer"),
    ],
)
def test_what_is_no_rule_is_said(given, said):
    with pytest.raises(cedar.PlanError, match=said):
        pipeline().loader(**given)
