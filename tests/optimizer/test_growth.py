"""What a plan costs grows with the pipeline, not with its square or cube: counted, not timed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

import cedar
from cedar import col
from cedar.optimizer.rules import RULES
from tests.optimizer.plan_lines import rewritten, table


def f(x):
    return x


def calls(work: Callable[[], Any]) -> int:
    """How many Python functions are called."""
    count = 0

    def count_calls(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(count_calls)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def unread(n):
    """Results that nothing reads, each of the one before it."""
    p = table("a", "b").with_columns(c0=col("a") + 1)
    for i in range(n):
        p = p.with_columns(**{f"c{i + 1}": col(f"c{i}") + 1})
    return p.select("a").batch(2)


def filtered_late(n):
    p = table("a", "b")
    for i in range(n):
        p = p.map(f, "a", into=f"m{i}", dtype=int)
    return p.filter(col("b") > 1).batch(2)


def renamed(n):
    p = table("a", "b")
    for _ in range(n // 2):
        p = p.rename({"a": "c"}).rename({"c": "a"})
    return p.batch(2)


def mixed(n):
    return cedar.mix([(table("a", "b").map(f, "a", dtype=int), 1.0) for _ in range(n // 2)]).select("a").batch(2)


@pytest.mark.heavy
@pytest.mark.parametrize("make", [unread, filtered_late, renamed, mixed])
def test_four_times_the_operators_take_four_times_the_calls(make):
    small, large = make(50), make(200)
    for pipeline in (small, large):
        rewritten(pipeline, *RULES)  # what is found out once is known
    few, many = calls(lambda: rewritten(small, *RULES)), calls(lambda: rewritten(large, *RULES))
    assert many < 4.6 * few


def test_filters_over_functions_take_a_call_for_each_pair_at_most():
    def make(n):
        p = table("a", "b")
        for i in range(n // 2):
            p = p.map(f, "a", dtype=int).filter(col("b") > i)
        return p.batch(2)

    few, many = (calls(lambda n=n: rewritten(make(n), *RULES)) for n in (25, 100))
    assert many < 16 * few


def test_all_changes_of_a_rule_are_made_in_one_pass(monkeypatch):
    from cedar.optimizer import rewrite

    passes: list[str] = []
    run = rewrite.Rewriting.run_pass

    def counted(self, rule, most):
        passes.append(rule.__name__)
        return run(self, rule, most)

    monkeypatch.setattr(rewrite.Rewriting, "run_pass", counted)
    rewritten(unread(100), *RULES)
    assert passes.count("dead_results") <= 4
