"""dead_results: plans before and after."""

from decimal import Decimal

import polars as pl
import pyarrow as pa
import pytest

import cedar
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
    (lambda p: p.map(f, "a", into="b").select("a"), "may have side effects"),
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


MAY_FAIL = {
    "lists of other lengths": (col("t") + col("u"), 4),
    "decimals beyond 38 digits": (col("d") * col("d"), 5),
    "a time in no calendar": (col("when").dt.month_start(), 5),
    "a row of a list that is not there": (col("t").list.get(1), 4),
    "texts that are not numbers": (col("s").str.to_integer(), 3),
}


@pytest.mark.heavy
@pytest.mark.parametrize("what", MAY_FAIL)
def test_rows_that_a_dead_result_skips_are_skipped_under_any_plan(what):
    """The row on which an expression fails is dropped, whether or not anyone reads the result."""
    expr, left = MAY_FAIL[what]
    data = pa.table(
        {
            "a": range(6),
            "t": [[1, 2]] * 4 + [[1]] * 2,
            "u": [[1, 2]] * 6,
            "d": pa.array([Decimal(2)] * 5 + [Decimal(10**37)], pa.decimal128(38, 0)),
            "when": pa.array([0] * 5 + [2**63 - 1], pa.timestamp("ms")),
            "s": ["1", "x", "3", "", "5", "y"],
        }
    )
    p = cedar.from_arrow(data).with_columns(b=expr).select("a")
    rows = {}
    for plan in ("off", "auto"):
        with p.loader(plan=plan, executor="inline", on_error=Skip()) as loader:
            rows[plan] = [row["a"] for row in loader]
    assert rows["off"] == rows["auto"]
    assert len(rows["off"]) == left
