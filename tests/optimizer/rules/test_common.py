"""common: plans before and after."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import Skip, col
from cedar.optimizer.rules import common
from tests.optimizer.plan_lines import decided, rewritten, table


def f(x):
    return x


def drawn(x, rng):
    return x


def twice(make, base):
    """Two pipelines over one: ``make`` is called for each, so their operators are two objects."""
    return cedar.zip(make(base), make(base).rename({"a": "b"}))


def operators(p, **more):
    root, decisions = rewritten(p, common, **more)
    return [n.operator.name for n in cedar.plan.graph.walk(root)], [str(d) for d in decisions]


SAME = [
    lambda p: p.map(f, "a"),
    lambda p: p.with_columns(a=col("a") + 1).map(f, "a"),
    lambda p: p.filter(col("a") > 1).select("a"),
    lambda p: p.flat_map(range, "a"),
]


@pytest.mark.parametrize("make", SAME)
def test_equal_operators_on_one_input_are_computed_once(make):
    base = table("a")
    p = twice(make, base)
    names, decisions = operators(p)
    assert names == [*(n.operator.name for n in cedar.plan.graph.walk(make(base).node)), "rename", "zip"]
    assert "computed once" in decisions[0]


DIFFERENT = [
    lambda p: p.map(lambda a: a, "a"),  # another function each time
    lambda p: p.shuffle(),
    lambda p: p.cache("memory"),
]


@pytest.mark.parametrize("make", DIFFERENT)
def test_what_differs_or_has_state_stays_apart(make):
    p = twice(make, table("a"))
    names, decisions = operators(p)
    assert names == [n.operator.name for n in cedar.plan.graph.walk(p.node)]
    assert decisions == []


def test_constants_are_compared_with_their_types():
    base = table("a")
    p = cedar.zip(base.with_columns(a=1), base.with_columns(a=True).rename({"a": "b"}))
    assert operators(p)[0] == [n.operator.name for n in cedar.plan.graph.walk(p.node)]


def test_two_sources_have_keys_of_their_own(tmp_path):
    pq.write_table(pa.table({"a": [1, 2, 3]}), tmp_path / "t.parquet")
    first, second = (cedar.read_parquet(str(tmp_path / "t.parquet")) for _ in "ab")
    p = cedar.zip(first.map(f, "a"), second.map(f, "a").rename({"a": "b"}))
    names, decisions = operators(p)
    assert names.count("map") == 2
    assert len(decisions) == 1
    assert "but its rows have their own keys" in decisions[0]
    assert operators(cedar.zip(table("a"), table("a").rename({"a": "b"})))[1] == []


def test_a_shared_pipeline_is_computed_once():
    seen = []

    def noted(a):
        seen.append(a)
        return a

    shared = table("a").map(noted, "a", dtype=pa.int64())
    p = cedar.zip(shared.with_columns(x=col("a") + 1).select("x"), shared.with_columns(y=col("a") + 2).select("y"))
    with p.loader(executor="inline", plan="off") as loader:
        list(loader)
    assert sorted(set(seen)) == sorted(seen)


def test_two_results_of_one_function_stay_two():
    p = table("a").map(f, "a", into="b").map(f, "a", into="c")
    assert "it computes what map(f) does" in operators(p)[1][0]
    assert operators(p)[0] == ["read", "map", "map"]


@pytest.mark.parametrize(
    "make",
    [
        lambda p: p.map(f, "a").map(f, "a"),
        lambda p: p.map(f, "a", into="b").map(f, "b", into="c"),
        lambda p: p.map(f, "a", into="b").with_columns(a=1).map(f, "a", into="c"),
        lambda p: p.map(f, "a", into="b").map(drawn, "a", into="c", random=True),
    ],
)
def test_what_only_looks_alike(make):
    assert operators(make(table("a")))[1] == []


def test_two_random_operators_draw_differently():
    p = twice(lambda p: p.map(drawn, "a", random=True), table("a"))
    assert "random" in decided(p, common)[0]


def test_skipped_rows_are_counted_by_each():
    p = twice(lambda p: p.map(f, "a", on_error=Skip()), table("a"))
    assert "count the rows that they skip" in decided(p, common, skips=lambda n: bool(n.inputs))[0]
