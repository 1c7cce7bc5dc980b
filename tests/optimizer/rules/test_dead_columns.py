"""dead_columns: plans before and after."""

import pytest

import cedar
from cedar import col
from cedar.optimizer.rules import RULES, dead_columns
from tests.operators.toy_transforms import AddNoise, Refuse
from tests.optimizer.plan_lines import after, decided, line, table


def f(x):
    return x


DROPPED = [
    (lambda p: p.map(f, "a", into="d").shuffle().select("d", "b"),
     "read -> select(a, b) -> map(f) -> select(b, d) -> shuffle -> select(d, b)"),
    (lambda p: p.with_columns(d=col("a") + 1).map(f, "d").select("d"),
     "read -> with_columns(d) -> select(d) -> map(f) -> select(d)"),
    (lambda p: p.shuffle(by="b").map(f, "a").select("a"),
     "read -> select(a, b) -> shuffle -> select(a) -> map(f) -> select(a)"),
    (lambda p: p.map(f, "a").filter(lambda b: True, "b").batch(2).drop("b"),
     "read -> map(f) -> filter(<lambda>) -> select(a, c) -> batch"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "expected"), DROPPED, ids=[e for _, e in DROPPED])
def test_dead_columns_go_before_rows_are_held(make, expected):
    assert after(make(table("a", "b", "c")), dead_columns) == expected


def test_with_all_rules_the_source_does_not_read_them():
    p = table("a", "b", "c").map(f, "a", into="d").shuffle().map(f, "d").select("d").batch(2)
    assert after(p, *RULES) == ("read[a] -> map(f) -> select(d) -> shuffle -> map(f) -> select(d) -> batch")
    assert "applied  dead_columns: shuffle(seed=0, window='256MiB'): a dropped below it" in decided(p, *RULES)


KEPT = [
    lambda p: p.map(f, "a").shuffle().batch(2),
    lambda p: p.shuffle().map(dict),
    lambda p: p.map(range, "a", into="l", dtype=list[int]).pack(4),
    lambda p: cedar.zip(p, p.rename({"a": "d", "b": "e", "c": "g"})),
]


@pytest.mark.parametrize("make", KEPT)
def test_what_is_read_or_may_be_read_stays(make):
    p = make(table("a", "b", "c"))
    assert after(p, dead_columns) == line(p.node)


def test_each_user_of_a_shared_pipeline_drops_what_it_does_not_read():
    shared = table("a", "b", "c").map(f, "a")
    p = cedar.zip(shared.shuffle().select("a"), shared.shuffle().select(x="b"))
    assert after(p, dead_columns) == (
        "zip(read -> select(a, b) -> map(f) -> select(a) -> shuffle -> select(a),"
        " read -> select(a, b) -> map(f) -> select(b) -> shuffle -> select(x))"
    )


def test_the_order_of_columns_at_the_end_is_as_written():
    p = table("a", "b", "c").map(f, "b", into="d").map(f, "c", into="a")
    assert after(p, *RULES) == "read[b,c] -> map(f) -> map(f) -> select(a, b, c, d)"


def test_transforms_that_run_as_one_are_not_parted():
    p = table("a", "b", "c").map(AddNoise(), "a", into="d").map(Refuse(1), "d").select("d").batch(2)
    assert "map(AddNoise) -> map(Refuse)" in after(p, dead_columns)
