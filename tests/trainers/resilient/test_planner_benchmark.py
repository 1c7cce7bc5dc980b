"""The benchmark of plans asks what it says it asks, and its rows say how they came about."""

import pytest

from benchmarks import resilient_plans
from benchmarks.harness import Form
from cedar.trainers.resilient.planner import Problem


def test_the_cases_for_the_solver_are_small_different_and_mostly_capped():
    found = list(resilient_plans.cases(50))
    assert len(set(map(repr, found))) == 50
    assert found == list(resilient_plans.cases(50))
    for problem in found:
        assert problem.stages <= 4
        assert problem.replicas <= 3
        assert problem.micro_batches <= 6
    assert sum(problem.memory is not None for problem in found) > 30
    assert sum(bool(problem.dead) for problem in found) > 30


def test_every_row_of_throughput_is_simulated_and_stands_beside_its_bound():
    rows = resilient_plans._throughput(Problem(3, 3, 4, memory="1f1b"), 0.1, 2, "a cap", targets=True)
    assert [row.how for row in rows] == ["simulated"] * 3
    assert [row.target for row in rows] == [">= 1", ">= 0.93", ">= 0.93"]
    assert "bound" in rows[0].note
    assert "own fault-free" in rows[0].note
    assert "zero-bubble" in rows[0].note


@pytest.mark.heavy
def test_the_toy_row_prints_the_bound_of_the_solver(monkeypatch):
    pytest.importorskip("ortools")
    exact = resilient_plans.exact
    monkeypatch.setattr(resilient_plans, "exact", lambda problem, _: exact(problem, 0.5, 1))
    free, capped, _ = resilient_plans.toy(Form.QUICK)
    assert (free.measured, free.met, capped.met) == (27, True, True)
    assert "its bound 27" in free.note
