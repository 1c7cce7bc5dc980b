"""loader(rules=, without=, budget=): the caller's rewrites, those left out, and what a plan may take."""

from __future__ import annotations

from dataclasses import replace

import pytest

import cedar
from cedar import col
from cedar.operators.expressions import FilterExpression
from cedar.optimizer.rewrite import Change
from cedar.plan import graph
from cedar.plan.steps import Replace
from cedar.plan.steps.step import Refusal
from tests.optimizer.plan_lines import line, table


def f(x):
    return x


def pipeline():
    return table("a", "b", rows=40).map(f, "a", dtype=int).shuffle().filter(col("b") > 3).batch(4)


def of(loader):
    return loader._epochs.job.plans.current


def g(x):
    """The same as f."""
    return x


def other(node, facts):
    """Another function that does the same."""
    if node.operator.name != "map" or node.operator.fn is g:
        return Refusal("nothing to replace") if not node.inputs else None
    return Change(Replace(replace(node.operator, fn=g)), facts.label(node), "by map(g)")


def half(node, facts):
    """A rule that is wrong: some rows."""
    return Replace(FilterExpression(col("a") > 9)) if node.operator.name == "map" else None


def grows(node, facts):
    """A rule that finds something to do in what it did."""
    return Replace(replace(node.operator, fn=lambda x: x)) if node.operator.name == "map" else None


def changes_the_graph(node, facts):
    return node.inputs[0] if node.operator.name == "map" else None


def test_a_rule_of_the_callers_is_applied_and_told():
    loader = pipeline().loader(executor="inline", rules=(other,))
    assert "other: map(f): by map(g)" in loader.explain()
    assert next(n for n in graph.walk(of(loader).root) if n.operator.name == "map").operator.fn is g


def test_a_single_rule_needs_no_tuple():
    assert "other: map(f): by map(g)" in pipeline().loader(executor="inline", rules=other).explain()


def test_a_rule_of_the_callers_comes_to_an_end():
    loader = pipeline().loader(executor="inline", rules=(grows,))
    assert sum(d.rule == "grows" and d.applied for d in of(loader).decisions) == 1
    assert "already replaces another operator" in "".join(str(d) for d in of(loader).decisions)


def test_a_rule_that_gives_another_graph_is_refused():
    loader = pipeline().loader(executor="inline", rules=(changes_the_graph,))
    (decision,) = (d for d in of(loader).decisions if d.rule == "changes_the_graph")
    assert not decision.applied
    assert "expected a step from cedar.plan.steps" in decision.why


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
    assert loader._epochs.job.plans.planner.budget.cpus == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"without": "pushfilter"}, "known rules: push_filter"),
        ({"without": ["nothing like it"]}, "without='nothing like it'"),
        ({"rules": [3]}, "functions of a node and the facts"),
        ({"rules": [other, other]}, "names that no other rule has"),
        ({"budget": 3}, "must be a Budget, got 3"),
        ({"rules": [other], "plan": "off"}, "for the optimizer"),
        ({"without": "late", "plan": "off"}, "for the optimizer"),
    ],
)
def test_what_is_no_rule_is_said(given, said):
    with pytest.raises(cedar.PlanError, match=said):
        pipeline().loader(**given)


def test_a_plan_whose_steps_count_on_rows_that_do_not_fail_is_not_taken_where_they_may(caplog):
    p = table("a", "b", rows=40).map(f, "a", dtype=int).filter(col("b") > 3).batch(4)
    plan = p.optimize()
    assert plan.sweeps
    with p.loader(plan=plan, executor="inline") as loader:
        assert of(loader).root is plan.root
    with p.loader(plan=plan, executor="inline", on_error=cedar.Skip()) as loader:
        assert of(loader).root is p.node
        assert "skip rows" in str(loader.plan.decisions[-1])
    assert "the pipeline runs as written, because the plan does not fit on_error=" in caplog.text
