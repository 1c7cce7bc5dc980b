"""All rules together: they end, and change no row."""

from __future__ import annotations

import random

import polars as pl
import pytest

import cedar
from cedar import col
from cedar.optimizer.rewrite import rewrite
from cedar.optimizer.rules import RULES
from cedar.plan.graph import walk
from cedar.plan.steps.sweep import key_of, replay
from tests.how_much import cases
from tests.optimizer.plan_lines import table
from tests.toy_plans_random import outcome, planner, profile
from tests.toy_wide import Builder

CASES = cases(8) * 3


@pytest.mark.heavy
def test_rules_come_to_an_end_and_their_steps_lead_to_the_same_graph() -> None:
    for seed in range(CASES):
        draw = random.Random(seed)
        try:
            root = Builder(draw).build().pipeline.node
        except cedar.PipelineError:
            continue
        made = planner(root)
        figures = profile(root, draw)
        joint = rewrite(made._facts(root, figures), RULES)  # moves and trims together, by figures
        facts = made._facts(root, None)
        for plan in (made.begin(), made.best(figures), joint):
            again = replay(facts, plan.sweeps)
            assert key_of(again, facts.ordinals) == key_of(plan.root, facts.ordinals), seed


@pytest.mark.heavy
def test_the_result_of_all_rules_together_is_that_of_the_pipeline_as_written() -> None:
    for seed in range(100, 100 + CASES // 8):
        draw = random.Random(seed)
        try:
            pipeline = Builder(draw).build().pipeline
        except cedar.PipelineError:
            continue
        made = planner(pipeline.node)
        done = rewrite(made._facts(pipeline.node, profile(pipeline.node, draw)), RULES)
        plan = cedar.Plan(pipeline.node, done.root, done.decisions, method="rules")
        found, written = (outcome(pipeline.loader(plan=each, executor="inline")) for each in (plan, "off"))
        if written.error is None or written.error[0] != "PipelineError":
            assert found == written, (seed, str(plan))


def test_limit_and_dead_columns_do_not_undo_each_other() -> None:
    p = table("a", "b", "c", "d")
    for i in range(8):
        p = p.with_columns(**{f"n{i}": col("a").cast(pl.Int8)})  # which may fail, and stays though nothing reads it
    p = p.filter(col("n0") > 0).take(5).select("a").batch(2)
    assert sum(n.operator.name == "select" for n in walk(planner(p.node).begin().root)) < 12
    assert len(planner(p.node).begin().sweeps) < len(list(walk(p.node)))
