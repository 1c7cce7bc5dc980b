"""live_columns: what each node must give."""

import pytest

import cedar
from cedar import col
from cedar.plan import graph
from cedar.plan.steps.live import live_columns
from tests.optimizer.plan_lines import table


def f(x):
    return x


def at_source(p):
    live = live_columns(p.node, graph.schemas(p.node))
    return live[id(graph.sources(p.node)[0])]


LIVE = [
    (lambda p: p, "abc"),
    (lambda p: p.select("a"), "a"),
    (lambda p: p.select("a", x=col("b") + 1), "ab"),
    (lambda p: p.select("a", x=col("b") + 1).select("a"), "ab"),
    (lambda p: p.drop("c"), "ab"),
    (lambda p: p.map(f, "a", into="b").select("b"), "a"),
    (lambda p: p.map(f, "a", into="b").select("c"), "ac"),
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
    assert at_source(p.map(f, "a")) is None
    assert at_source(p.map(dict).select("a")) is None
    assert at_source(p.map(f, "a").select("a")) == {"a"}
