"""limit: plans before and after."""

import pytest

import cedar
from cedar import Skip, col
from cedar.optimizer.rules import limit
from tests.optimizer.plan_lines import after, decided, line, table


def f(x):
    return x


LIMITED = [
    (lambda p: p.map(f, "a").take(2), "read -> take(2) -> map(f)"),
    (lambda p: p.filter(col("a") > 1).map(dict).drop("b").take(2),
     "read -> filter(a > 1) -> take(2) -> map(dict) -> drop(b)"),
    (lambda p: p.batch(2).map(f, "a").take(2), "read -> batch -> take(2) -> map(f)"),
    (lambda p: p.map(f, "a", random=False).shuffle().map(f, "a").take(2),
     "read -> map(f) -> shuffle -> take(2) -> map(f)"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "expected"), LIMITED, ids=[e for _, e in LIMITED])
def test_take_goes_down(make, expected):
    assert after(make(table("a", "b")), limit) == expected


KEPT = [
    (lambda p: p.filter(col("a") > 1).take(2), "changes the number of rows"),
    (lambda p: p.flat_map(range, "a").take(2), "changes the number of rows"),
    (lambda p: p.map(f, "a", on_error=Skip()).take(2), "may skip rows"),
    (lambda p: cedar.zip((q := p.map(f, "a")).take(2), q.rename({"a": "c", "b": "d"})), "others draw from"),
    (lambda p: p.cache("memory").take(2), None),
    (lambda p: p.map_batches(dict, "a", size=2).take(2), None),
    (lambda p: p.shuffle().take(2), None),
]


@pytest.mark.parametrize(("make", "why"), KEPT)
def test_why_take_stays(make, why):
    def skips(node):
        return getattr(node.logical.operator, "on_error", None) is not None

    p = make(table("a", "b"))
    assert after(p, limit, skips=skips) == line(p.node)
    assert [why in d for d in decided(p, limit, skips=skips)] == ([True] if why else [])
