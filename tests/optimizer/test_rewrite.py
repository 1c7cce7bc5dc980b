"""rewrite: to a fixpoint, with decisions that can be read, and columns in their order."""

from dataclasses import dataclass

import cedar
from cedar import col
from cedar.optimizer.rewrite import Change
from cedar.optimizer.rules import RULES, push_filter
from cedar.plan import graph
from cedar.plan.steps import Reorder, Step
from cedar.plan.steps.step import Refusal
from tests.optimizer.plan_lines import after, decided, line, measured, rewritten, table


def f(x):
    return x


def test_a_line_per_operator_and_rule():
    p = table("a", "b", "c").map(f, "a").shuffle().map(f, "a").filter(col("b") > 1).select("a").batch(2)
    source = p.node
    while source.inputs:
        source = source.inputs[0]
    label = source.operator.label()
    assert decided(p, *RULES) == [
        "applied  push_filter: filter([(col(\"b\")) > (1)]): below map(f) #2, shuffle(seed=0, window='256MiB'), map(f)",
        f'applied  scan_filter: filter([(col("b")) > (1)]): into {label}',
        f"applied  scan_columns: {label}: reads a alone",
    ]


def test_a_node_of_the_plan_names_the_one_it_stands_for():
    p = table("a", "b").map(f, "a").filter(col("b") > 1).batch(2)
    root, _ = rewritten(p, *RULES)
    written = list(graph.walk(p.node))
    assert [written.index(node.logical) for node in graph.walk(root)] == [0, 1, 3]
    again, decisions = rewritten(p, *RULES, refused=frozenset(rule.__name__ for rule in RULES))
    assert again is p.node
    assert decisions == []


def test_a_refused_rule_is_not_tried():
    p = table("a", "b").map(f, "a").filter(col("b") > 1)
    assert after(p, push_filter, refused=frozenset({"push_filter"})) == line(p.node)


def test_a_pipeline_without_anything_to_gain_is_left_alone():
    p = table("a").map(f, "a").batch(2)
    root, decisions = rewritten(p, *RULES)
    assert root is p.node
    assert decisions == []


def test_equal_refusals_are_told_once():
    def never(node, facts):
        return Refusal("not today", "it") if node.inputs else None

    assert decided(table("a").map(f, "a").map(f, "a"), never) == ["refused  never: it  (not today)"]


@dataclass(frozen=True)
class Lose(Step):
    """A step whose check lets everything pass."""

    def check(self, graph, facts):
        return None

    def apply(self, graph, facts):
        return graph.inputs[0]


def test_a_rule_that_breaks_a_pipeline_is_refused():
    def broken(node, facts):
        return Change(Lose(), "map", "gone") if node.operator.name == "with_columns" else None

    p = table("a").with_columns(b=col("a") + 1).map(f, "b", into="c").filter(col("c") > 1)
    root, (decision,) = rewritten(p, broken)
    assert root is p.node
    assert not decision.applied
    assert "no column 'b'" in decision.why


def test_rules_that_lead_nowhere_come_to_an_end():
    def swaps(node, facts):
        return Change(Reorder((1, 0)), "it") if len(node.inputs) == 1 and node.inputs[0].inputs else None

    p = table("a", "b").map(f, "a").map(f, "b")
    root, decisions = rewritten(p, swaps)
    assert line(root) == "read -> map(f) -> map(f)"
    assert [d.applied for d in decisions] == [True, False]
    assert "an earlier plan" in decisions[1].why


def test_a_refused_step_says_why():
    def swaps(node, facts):
        return Reorder((1, 0)) if len(node.inputs) == 1 and node.inputs[0].inputs else None

    _, (decision,) = rewritten(table("a").map(f, "a").map(f, "a"), swaps)
    assert not decision.applied
    assert "both change 'a', and do not say how" in decision.why


def test_what_is_shared_stays_shared():
    shared = table("a", "b").map(f, "a").filter(col("b") > 1)
    p = cedar.zip(shared.select("a"), shared.select(c="b"))
    root, _ = rewritten(p, *RULES)
    assert line(root) == ("zip(read[* where b > 1] -> map(f) -> select(a), read[* where b > 1] -> map(f) -> select(c))")
    assert root.inputs[0].inputs[0] is root.inputs[1].inputs[0]


def test_sixty_operators_take_no_time_to_speak_of():
    p = table("a", "b", "c")
    for i in range(29):
        p = p.map(f, "a", into=f"n{i}", dtype=int).with_columns(**{f"m{i}": col(f"n{i}") + 1})
    p = p.filter(col("b") > 1).select("a", "m28").batch(2)
    root, decisions = rewritten(p, *RULES)
    assert len(list(graph.walk(root))) < len(list(graph.walk(p.node)))
    assert len(decisions) > 30


def test_a_step_that_costs_more_is_not_taken():
    def sinks(node, facts):
        return Change(Reorder((1, 0)), "map", "down") if node.operator.name == "map" and node.inputs[0].inputs else None

    p = table("a", "b").filter(col("b") > 1).map(f, "a")
    figures = measured(cpu={1: 1e-6, 2: 1e-3}, keep={1: 0.1}, rows={1: 100, 2: 100})
    root, (refused,) = rewritten(p, sinks, profile=figures)
    assert root is p.node
    assert refused.why == "down: it would cost 891% more"
    root, (done,) = rewritten(p, sinks)
    assert line(root) == "read -> map(f) -> filter(b > 1)"
    assert done.applied, "before anything is measured nothing knows"
