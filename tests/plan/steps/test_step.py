"""Graphs that are edited: columns in their order."""

from __future__ import annotations

from cedar.optimizer.rules import RULES
from tests.optimizer.plan_lines import after, table


def f(x):
    return x


def test_columns_come_in_their_order_wherever_that_shows():
    p = table("a", "b", "c").map(f, "b", into="a").map(lambda row: row, dtype={"a": int})
    assert after(p, *RULES) == "read[b,c] -> map(f) -> select(a, b, c) -> map(<lambda>)"
    q = table("a", "b", "c").map(f, "b", into="a").shuffle().batch(2)
    assert after(q, *RULES) == "read[b,c] -> map(f) -> shuffle -> batch -> select(a, b, c)"
