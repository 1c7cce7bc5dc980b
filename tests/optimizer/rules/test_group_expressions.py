"""group_expressions: plans before and after."""

import pytest

from cedar import Skip, col
from cedar.optimizer.rules import group_expressions
from tests.optimizer.plan_lines import after, decided, line, measured, table

CALLS = dict.fromkeys(range(1, 6), 1e-4)
QUICK = {"call": CALLS, "wall": CALLS}
SLOW = {"call": CALLS, "wall": {**CALLS, 2: 1.0}}


def f(x):
    return x


GROUPED = [
    (lambda p: p.with_columns(x=col("a") + 1).map(f, "b").with_columns(y=col("c") + 1),
     "read -> with_columns(x) -> with_columns(y) -> map(f)"),
    (lambda p: p.filter(col("a") > 1).map(f, "b").map(f, "b").with_columns(y=col("c") + 1),
     "read -> filter(a > 1) -> with_columns(y) -> map(f) -> map(f)"),
    (lambda p: p.batch(2).with_columns(x=col("a") + 1).map(f, "b").with_columns(y=col("c") + 1),
     "read -> batch -> with_columns(x) -> with_columns(y) -> map(f)"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "expected"), GROUPED, ids=[e for _, e in GROUPED])
def test_expressions_come_together(make, expected):
    p = make(table("a", "b", "c"))
    assert after(p, group_expressions, profile=measured(**QUICK)) == expected
    assert "us a block" in decided(p, group_expressions, profile=measured(**QUICK))[0]
    assert after(p, group_expressions) == line(p.node)


KEPT = [
    ("next to operators that take long", lambda p: p.with_columns(x=col("a") + 1).map(f, "b").with_columns(y=col("c")),
     SLOW, "it would save 100 of 1,000,200 us a block"),
    ("reads what is between", lambda p: p.with_columns(x=col("a") + 1).map(f, "b").with_columns(y=col("b")), QUICK, ""),
    ("rows are dropped between",
     lambda p: p.with_columns(x=col("a") + 1).filter(f, "b").with_columns(y=col("c")), QUICK, ""),
    ("rows are skipped between",
     lambda p: p.with_columns(x=col("a") + 1).map(f, "b", on_error=Skip()).filter(f, "b").with_columns(y=col("c")),
     QUICK, ""),
    ("nothing to join", lambda p: p.map(f, "b").with_columns(y=col("c")), QUICK, ""),
    ("across a stream operator",
     lambda p: p.with_columns(x=col("a") + 1).shuffle().with_columns(y=col("c")), QUICK, ""),
    ("what makes rows larger",
     lambda p: p.with_columns(x=col("a") + 1).map(f, "b").with_columns(y=col("c")),
     QUICK | {"bytes_in": {3: 8.0}, "bytes_out": {3: 80.0}}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("make", "figures", "why"), [each[1:] for each in KEPT], ids=[each[0] for each in KEPT])
def test_why_an_expression_stays(make, figures, why):
    p = make(table("a", "b", "c"))
    assert after(p, group_expressions, profile=measured(**figures)) == line(p.node)
    assert [why in d for d in decided(p, group_expressions, profile=measured(**figures))] == ([True] if why else [])
