"""Every change of every rule lowers the measure: rewriting ends, whatever the pipeline and the figures."""

from __future__ import annotations

import random
from typing import Any

import polars as pl
import pytest

import cedar
from cedar import col
from cedar.optimizer import rewrite as rewriting
from cedar.optimizer.rules import RULES
from cedar.plan.graph import walk
from tests.how_much import cases
from tests.optimizer.plan_lines import table
from tests.toy_plans_random import outcome, planner, profile
from tests.toy_wide import Builder

CASES = cases(8) * 3


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """The measures of each rewriting, graph by graph."""
    found: list[list[Any]] = []
    take = rewriting.Rewriting._take

    def taken(self: Any, *args: Any) -> str:
        before = self.measured or self.measure(self.facts)
        why = take(self, *args)
        if not why:
            found.append([before, self.measure(self.facts)])
        return why

    monkeypatch.setattr(rewriting.Rewriting, "_take", taken)
    return found


@pytest.mark.heavy
def test_every_step_lowers_the_measure_and_no_rule_of_ours_is_held_up(steps: list[list[Any]]) -> None:
    held_up = 0
    for seed in range(CASES):
        draw = random.Random(seed)
        try:
            root = Builder(draw).build().pipeline.node
        except cedar.PipelineError:
            continue
        made = planner(root)
        figures = profile(root, draw)
        plans = [made.begin(), made.best(figures)]
        joint, decisions = made._rewritten(root, RULES, figures)  # moves and trims together, by figures
        held_up += sum("no further" in d.why for d in [*decisions, *(d for plan in plans for d in plan.decisions)])
        assert joint is not None
    assert len(steps) > CASES
    assert all(after < before for before, after in steps)
    assert held_up <= CASES // 8  # such as caches that stand well once columns are gone, and not before


@pytest.mark.heavy
def test_the_result_of_all_rules_together_is_that_of_the_pipeline_as_written() -> None:
    for seed in range(100, 100 + CASES // 8):
        draw = random.Random(seed)
        try:
            pipeline = Builder(draw).build().pipeline
        except cedar.PipelineError:
            continue
        made = planner(pipeline.node)
        root, decisions = made._rewritten(pipeline.node, RULES, profile(pipeline.node, draw))
        plan = cedar.Plan(pipeline.node, root, tuple(decisions), method="rules")
        found, written = (outcome(pipeline.loader(plan=each, executor="inline")) for each in (plan, "off"))
        if written.error is None or written.error[0] != "PipelineError":
            assert found == written, (seed, str(plan))


def test_limit_and_dead_columns_do_not_undo_each_other(steps: list[list[Any]]) -> None:
    p = table("a", "b", "c", "d")
    for i in range(8):
        p = p.with_columns(**{f"n{i}": col("a").cast(pl.Int8)})  # which may fail, and stays though nobody reads it
    p = p.filter(col("n0") > 0).take(5).select("a").batch(2)
    assert sum(n.operator.name == "select" for n in walk(planner(p.node).begin().root)) < 12
    assert len(steps) < 2 * len(list(walk(p.node)))
