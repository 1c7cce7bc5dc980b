"""Rules that compute equal operators and rows once: plans before and after."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import Skip, col
from cedar.operators.algebra import length_changing, per_value
from cedar.optimizer.rules import common, dedup_place
from cedar.plan.steps.order import may_swap
from cedar.plan.steps.step import facts_of
from tests.optimizer.plan_lines import after, decided, line, measured, rewritten, table
from tests.toy_sessions import sessions


@per_value
def f(x):
    return x


@per_value
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


GROUP = [["a", "b"]]
OFTEN = {"a": 9.0, "b": 9.0}


@length_changing
def g(x):
    return x


def h(x):
    return x


def log():
    lists = pa.array([[1, 2]] * 4, pa.large_list(pa.int64()))
    return cedar.from_arrow(pa.table({"a": lists, "b": lists, "x": np.arange(4)}))


def factors(known):
    return {"factors": lambda node: known}


MOVED = [
    (lambda p: p.map(f, "a").dedup(GROUP), "read -> dedup -> map(f)"),
    (lambda p: p.map(f, "a").map(g, "b").dedup(GROUP), "read -> dedup -> map(f) -> map(g)"),
    (lambda p: p.map(f, "a").shuffle().batch(2).dedup(GROUP), "read -> dedup -> map(f) -> shuffle -> batch"),
    (lambda p: p.map(h, "x").map(f, "a").dedup(), "read -> map(h) -> dedup -> map(f)"),
    (lambda p: p.map(f, "a").filter(col("x") > 1).dedup(GROUP), "read -> dedup -> map(f) -> filter(x > 1)"),
    (lambda p: p.map(h, "a").map(f, "a").dedup(GROUP), "read -> map(h) -> dedup -> map(f)"),
    (lambda p: p.map(f, "a").map(h, "x").dedup(GROUP), "read -> dedup -> map(f) -> map(h)"),
    (lambda p: p.batch(2).map(f, "a").dedup(GROUP), "read -> batch -> dedup -> map(f)"),
]


@pytest.mark.parametrize(("make", "expected"), MOVED, ids=[expected for _, expected in MOVED])
def test_features_are_grouped_before_what_is_then_done_once(make, expected):
    p = make(log())
    assert after(p, dedup_place, **factors(OFTEN)) == expected
    assert "below map(" in decided(p, dedup_place, **factors(OFTEN))[0]
    assert after(p, dedup_place) == line(p.node)  # if nothing is known of the rows


KEPT = [
    (lambda p: p.map(h, "a").dedup(GROUP), OFTEN, "map(h) is not marked as changing one value by itself"),
    (lambda p: p.map(drawn, "a", random=True).dedup(GROUP), OFTEN, "map(drawn) draws for each row"),
    (lambda p: p.map(f, "a").dedup(GROUP), {"a": 1.2}, "before map(f): rows of 'a' repeat 1.2 times, below 1.5"),
    (lambda p: p.map(f, "a").dedup(GROUP), {}, "before map(f): rows of 'a' repeat 1 times, below 1.5"),
    (lambda p: p.map(f, "a").map(h, "a").dedup(GROUP), OFTEN, "map(h) is not marked"),
    (lambda p: p.map(f, "x").dedup(GROUP), OFTEN, None),
    (lambda p: p.map(f, "a").cache().dedup(GROUP), OFTEN, None),
    (lambda p: p.map(f, "a").flat_map(range, "x").dedup(GROUP), OFTEN, None),
    (lambda p: p.dedup(GROUP).map(f, "a"), OFTEN, None),
    (lambda p: p.map(f, "a").map(dict).dedup(GROUP), OFTEN, None),
]


@pytest.mark.parametrize(("make", "known", "why"), KEPT)
def test_why_features_are_grouped_where_the_user_said(make, known, why):
    p = make(log())
    assert after(p, dedup_place, **factors(known)) == line(p.node)
    assert [why in told for told in decided(p, dedup_place, **factors(known))] == ([True] if why else [])


def test_what_takes_less_time_than_grouping_anew_is_not_worth_a_move():
    p = log().map(f, "a").dedup(GROUP)
    cheap, dear = measured(wall={1: 1e-8, 2: 1e-6}), measured(wall={1: 1e-5, 2: 1e-6})
    assert "it saves 0.00889 us a row" in decided(p, dedup_place, profile=cheap, **factors(OFTEN))[0]
    assert after(p, dedup_place, profile=dear, **factors(OFTEN)) == "read -> dedup -> map(f)"


def test_the_search_leaves_what_is_done_once_above():
    p = log().dedup(GROUP).map(f, "a")
    facts = facts_of(p.node, p.node, lambda node: False)
    assert "runs once for equal rows" in may_swap(p.node.inputs[0], p.node, facts).reason
    other = log().dedup([["b"]]).map(f, "a")
    assert may_swap(other.node.inputs[0], other.node, facts_of(other.node, other.node, lambda node: False)) is None


def test_a_run_moves_it_by_a_sample_and_gives_the_same_batches():
    table = sessions(2048, 16, 0.95)
    p = cedar.from_arrow(table).map(f, "a", dtype=list[int]).shuffle(by="session").dedup(GROUP).batch(128)
    with p.loader() as loader, p.loader(plan="off") as plain:
        for one, other in zip(loader, plain, strict=True):
            assert one["a"] == other["a"]
        assert "applied  dedup_place: dedup(a+b): below map(f)" in loader.explain()
    rare = cedar.from_arrow(sessions(2048, 1, 0.0)).map(f, "a", dtype=list[int]).dedup(GROUP).batch(128)
    assert "refused  dedup_place: dedup(a+b)  (before map(f): rows of 'a' repeat 1 times" in rare.explain()


def test_plans_with_a_moved_dedup_are_saved_and_loaded(tmp_path):
    p = cedar.from_arrow(sessions(512, 16, 0.95)).map(f, "a", dtype=list[int]).dedup(GROUP).batch(64)
    plan = p.optimize()
    plan.save(tmp_path / "plan.json")
    again = cedar.Plan.load(tmp_path / "plan.json", p)
    assert line(again.root) == line(plan.root) == "read -> dedup -> map(f) -> batch"
