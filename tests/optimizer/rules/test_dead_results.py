"""dead_results: plans before and after."""

import polars as pl
import pytest

from cedar import Skip, col
from cedar.optimizer.rules import dead_results
from tests.optimizer.plan_lines import after, decided, line, table


def f(x):
    return x


DROPPED = [
    (lambda p: p.with_columns(b=col("a") + 1, c=col("a") * 2).select("a", "c"),
     "read -> with_columns(c) -> select(a, c)"),
    (lambda p: p.with_columns(b=col("a") + 1).shuffle().select("a"), "read -> shuffle -> select(a)"),
    (lambda p: p.with_columns(b=col("a")).map(f, "a", into="b"), "read -> map(f)"),
    (lambda p: p.select("a", b=col("a") + 1).batch(2).drop("b"), "read -> select(a) -> batch"),
    (lambda p: p.with_columns(b=col("a") + 1).with_columns(c=col("b") + 1).select("a"), "read -> select(a)"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "expected"), DROPPED, ids=[e for _, e in DROPPED])
def test_results_that_nobody_reads_are_not_computed(make, expected):
    assert after(make(table("a")), dead_results) == expected


KEPT = [
    (lambda p: p.map(f, "a", into="b").select("a"), "a function may do more"),
    (lambda p: p.with_columns(b=col("a").cast(pl.Int8)).select("a"), "may fail on some row"),
    (lambda p: p.with_columns(b=col("a") + 1), None),
    (lambda p: p.with_columns(b=col("a") + 1).map(dict), None),
    (lambda p: p.with_columns(b=col("a") + 1).cache("memory").select("a"), None),
]


@pytest.mark.parametrize(("make", "why"), KEPT)
def test_why_a_result_is_computed(make, why):
    p = make(table("a"))
    assert after(p, dead_results) == line(p.node)
    assert [why in d for d in decided(p, dead_results)] == ([True] if why else [])


def test_rows_on_which_a_dead_result_fails_are_skipped_as_written():
    from cedar.operators.expressions import WithColumns

    p = table("a").apply(WithColumns((("b", col("a").cast(pl.Int8)),), Skip())).select("a")
    assert after(p, dead_results) == line(p.node)
