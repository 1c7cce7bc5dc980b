"""The planner: its candidates and what it predicts of them, and what it checks on sample rows, or need not."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar.operators import image
from cedar.pipeline.planning import planner_for
from cedar.plan import graph
from cedar.plan.data import Budget
from tests.optimizer.toy_profiles import figures
from tests.optimizer.toy_searches import ROWS, work
from tests.toy_plans_random import profile


def twice(x):
    return 2 * x


def test_what_is_built_wrongly_is_no_fault_of_the_rules(caplog):
    p = cedar.from_items([{"image": np.zeros((4, 5, 3), np.uint8)}])
    with pytest.raises(cedar.PipelineError, match="ColorJitter takes images"):
        p.map(image.to_float(), "image").map(image.color_jitter(0.4), "image").explain()
    assert caplog.text == ""


def test_there_is_a_candidate_for_each_kind_of_place():
    pipeline = cedar.from_items(ROWS).map(work, "a").batch(2)
    made = planner_for(pipeline.node, Budget(), "auto", None, None, exact=True)
    made.workers = 4
    drawn = profile(made.root, random.Random(1))
    dear = replace(drawn.operators[1], wall=1e-3, cpu=1e-3, keep=1.0)
    known = replace(drawn, operators={0: drawn.operators[0], 1: replace(dear, gil=None)})
    found = made.candidates(known)
    assert [("processes" in {n.place for n in graph.walk(p.root)}, p.workers == 1) for p in found] == [
        (False, False),
        (False, True),
        (True, False),
    ]
    assert not any(plan.prediction.more for plan in found)
    assert "one more core" in made.with_prediction(found[2], known).prediction.more  # once it is told of
    made.most_workers = None  # their number is the user's
    assert len(made.candidates(known)) == 2


def test_a_plan_is_predicted_as_it_is_after_all_rules(tmp_path):
    rows = pa.table({"a": range(100), "b": ["x" * 100] * 100})
    pq.write_table(rows, tmp_path / "t.parquet")
    pipeline = cedar.read_parquet(str(tmp_path / "t.parquet")).map(work, "a", dtype=int).select("a").batch(2)
    made = planner_for(pipeline.node, Budget(), "auto", 2, None, exact=True)
    drawn = profile(made.root, random.Random(1))
    read = replace(figures(1e-3, columns={"a": 8.0, "b": 104.0}), label="read")
    drawn = replace(drawn, operators={0: read, 1: figures(1e-6, columns={"a": 8.0}), 2: figures(1e-9)})
    plan = made.best(drawn)
    assert next(getattr(n.operator, "columns", None) for n in graph.walk(plan.root)) == ("a",)
    assert plan.prediction.rows_per_second > 1e4  # reading one column takes a part of what reading both takes: 1 ms
    assert plan.prediction == made.with_prediction(plan, drawn).prediction
