"""Graphs that are edited: columns in their order."""

from __future__ import annotations

from dataclasses import replace

import pytest

import cedar
from cedar import col
from cedar.core.errors import PipelineError
from cedar.optimizer.rules import RULES
from cedar.plan import graph
from cedar.plan.graph import Node
from cedar.plan.steps.step import Facts, facts_of, live_columns, only, rebuilt
from cedar.profile import Profile
from tests.optimizer.plan_lines import after, measured, table


def f(x):
    return x


def test_columns_come_in_their_order_wherever_that_shows():
    p = table("a", "b", "c").map(f, "b", into="a").map(lambda row: row, dtype={"a": int})
    assert after(p, *RULES) == "read[b,c] -> map(f) -> select(a, b, c) -> map(<lambda>)"
    q = table("a", "b", "c").map(f, "b", into="a").shuffle().batch(2)
    assert after(q, *RULES) == "read[b,c] -> map(f) -> shuffle -> batch -> select(a, b, c)"


def facts_at(root: Node, profile: Profile | None = None) -> Facts:
    return facts_of(root, root, lambda node: False, profile)


def test_a_node_is_known_by_its_place_in_the_pipeline_as_written() -> None:
    top = table("a", "b").map(f, "a").map(f, "b").node
    facts = facts_at(top, measured(cpu={2: 1e-3}))
    again = rebuilt(top, top.inputs, facts)
    assert [facts.ordinal(node) for node in (top.inputs[0], top, again)] == [1, 2, 2]
    assert [facts.label(node) for node in (top.inputs[0], top, again)] == ["map(f)", "map(f) #2", "map(f) #2"]
    figures = facts.figures(again)
    assert figures is not None
    assert figures.cpu == 1e-3
    put_in = only(top, ("a",))  # by the optimizer
    assert (facts.ordinal(put_in), facts.figures(put_in)) == (None, None)


def test_what_follows_for_new_nodes_is_learned_and_old_ones_are_let_go() -> None:
    top = table("a", "b", "c").map(f, "a", dtype=int).filter(col("b") > 1).select("a").node
    written = facts_at(top)
    facts, old = replace(written, consumers=dict(written.consumers), live=dict(written.live)), top.inputs[0]
    read = old.inputs[0].inputs[0]
    below = rebuilt(old, (read,), facts)
    new = rebuilt(old.inputs[0], (below,), facts)
    facts.learn(new)
    assert new.schema == old.schema
    facts.replace_node(new, old)
    assert facts.consumers[id(new)] == [top]
    assert facts.consumers[id(read)] == [below]
    assert facts.live[id(new)] == written.live[id(old)] == {"a"}
    assert written.consumers[id(read)] == [old.inputs[0]]  # of the graph before


def test_a_node_that_does_not_fit_is_an_error_at_the_users_line() -> None:
    top = table("a", "b").map(f, "b").node
    facts = facts_at(top)
    with pytest.raises(PipelineError, match="no column 'b'") as caught:
        facts.learn(rebuilt(top, (only(top.inputs[0], ("a",)),), facts))
    assert caught.value.site is not None
    assert caught.value.site.file == __file__


def test_sources_are_told_apart_by_what_they_read() -> None:
    one = table("a")
    both = cedar.zip(one, one.rename({"a": "b"})).node
    assert [len(nodes) for nodes in facts_at(both).readers.values()] == [1]
    assert len(facts_at(cedar.concat(one, table("a")).node).readers) == 2


def live_f(x):
    return x


def at_source(p):
    live = live_columns(p.node)
    return live[id(graph.sources(p.node)[0])]


LIVE = [
    (lambda p: p, "abc"),
    (lambda p: p.select("a"), "a"),
    (lambda p: p.select("a", x=col("b") + 1), "ab"),
    (lambda p: p.select("a", x=col("b") + 1).select("a"), "ab"),
    (lambda p: p.drop("c"), "ab"),
    (lambda p: p.map(live_f, "a", into="b").select("b"), "a"),
    (lambda p: p.map(live_f, "a", into="b").select("c"), "ac"),
    (lambda p: p.flat_map(range, "a", into="b").select("b"), "a"),
    (lambda p: p.filter(col("c") > 1).select("a"), "ac"),
    (lambda p: p.filter(lambda row: True).select("a"), "abc"),
    (lambda p: p.map(dict).select("a"), "abc"),
    (lambda p: p.rename({"a": "b", "b": "a"}).select("b"), "a"),
    (lambda p: p.rename({"a": "x"}).select("c"), "c"),
    (lambda p: p.with_columns(cedar.col("^a|b$") + 1).select("a"), "abc"),
    (lambda p: p.shuffle(by="c").select("a"), "ac"),
    (lambda p: p.sample(col("b") + 1).select("a"), "ab"),
    (lambda p: p.map(range, "b", into="l", dtype=list[int]).pack(4, "l"), "b"),
    (lambda p: p.map(range, "b", into="l", dtype=list[int]).pack(4), "abc"),
    (lambda p: p.batch(2, last="pad").select("a", "valid"), "a"),
    (lambda p: p.map(range, "b", dtype=list[int]).bucket_by_length("b", [2], [2, 2]).select("a"), "ab"),
    (lambda p: p.take(2).skip(1).repeat(2).select("a"), "a"),
    (lambda p: p.cache("memory").select("a"), "abc"),
    (lambda p: cedar.concat(p, p).select("a"), "a"),
    (lambda p: cedar.mix([(p, 1), (p.select("c", "b", "a"), 1)]).select("a"), "abc"),
    (lambda p: cedar.zip(p, p.rename({"a": "d", "b": "e", "c": "g"})).select("a", "e"), "ab"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "expected"), LIVE)
def test_what_the_source_must_give(make, expected):
    assert at_source(make(table("a", "b", "c"))) == frozenset(expected)


def test_nothing_is_known_where_columns_have_no_names_yet():
    class Source:
        def splits(self):
            return [0]

        def read(self, split):
            return [{"a": [1]}]

    p = cedar.from_source(Source())
    assert at_source(p) is None
    assert at_source(p.map(live_f, "a")) is None
    assert at_source(p.map(dict).select("a")) is None
    assert at_source(p.map(live_f, "a").select("a")) == {"a"}
