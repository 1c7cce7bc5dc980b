"""The exact planner: known optima, and a bound that no plan is below."""

import random

import pytest

from cedar.trainers.resilient.planner import Problem, exact, plan
from cedar.trainers.resilient.schedule import Costs, Worker, validate
from tests.trainers.resilient.planner.toy_problems import LONE


def test_the_exact_planner_proves_the_known_optima():
    pytest.importorskip("ortools")
    free = exact(Problem(4, 3, 6, LONE), seconds=20, workers=2)
    assert (free.period, free.bound, free.optimal, free.method) == (27, 27, True, "exact")
    together = exact(Problem(2, 2, 3, frozenset({Worker(1, 1)}), mode="sync"), seconds=20, workers=2)
    assert together.optimal
    assert together.period == together.makespan == 19


@pytest.mark.heavy
def test_the_heuristic_is_never_below_the_bound_of_the_exact_planner():
    pytest.importorskip("ortools")
    draw = random.Random(3)
    for _ in range(3):
        problem = Problem(
            draw.randint(2, 3), 2, draw.randint(2, 3), frozenset({Worker(draw.randint(0, 1), 1)}),
            draw.choice(["1f1b", "stage 1f1b", 2]), draw.choice(["sync", "staggered"]),
        )  # fmt: skip
        best = exact(problem, seconds=3, workers=2)
        assert best.bound - 1e-6 <= best.period <= plan(problem).period + 1e-6
        assert validate(best.schedule) == best.facts


def test_the_exact_planner_rounds_costs_that_were_measured():
    pytest.importorskip("ortools")
    measured = Problem(2, 2, 2, costs=Costs((0.0213, 0.019), 0.022, (0.017, 0.0201), 0.0007, 0.003, 0.011))
    assert plan(measured, thorough=True).period >= exact(measured, seconds=3, workers=2).period >= measured.bound
