"""Plans are proven, the same everywhere, within their memory, and as short as they can be."""

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.simulate import one_f_one_b
from cedar.trainers.resilient.planner import Problem, plan
from cedar.trainers.resilient.schedule import timeline, validate
from tests.trainers.resilient.planner.toy_problems import LONE, problems


@pytest.mark.heavy
@given(problems(), st.booleans())
def test_any_plan_is_proven_within_its_memory_and_takes_as_long_as_it_says(problem, thorough):
    made = plan(problem, thorough=thorough)
    facts = validate(made.schedule)
    for worker, live in facts.live.items():
        assert problem.caps[worker.stage] is None or live <= problem.caps[worker.stage]
    times = timeline(made.schedule, problem.costs, iterations=12)
    assert times.makespan == pytest.approx(made.makespan)
    later = [b - a for a, b in pairwise(times.ends)][5:]
    assert min(later) - 1e-6 <= made.period <= max(later) + 1e-6
    assert made.period >= made.bound - 1e-6
    assert plan(problem, thorough=thorough) == made


@pytest.mark.parametrize(("memory", "period"), [(None, 27), ("1f1b", 29), ("stage 1f1b", 32)])
def test_one_failure_of_four_stages_three_replicas_six_micro_batches(memory, period):
    made = plan(Problem(4, 3, 6, LONE, memory))
    assert made.period == period
    assert made.optimal is (memory is None)
    assert timeline(one_f_one_b(Problem(4, 3, 6))).period == 27


def test_each_technique_shortens_the_step():
    problem = Problem(4, 3, 6, LONE)
    rerouted = timeline(one_f_one_b(problem), iterations=4).period
    split = plan(replace(problem, mode="sync")).period
    staggered = plan(problem).period
    assert rerouted > split > staggered == problem.bound


def test_steps_of_stages_that_share_weights_wait_for_each_other():
    free, tied = plan(Problem(3, 2, 4)).period, plan(Problem(3, 2, 4, tied=(0, 2))).period
    assert free < tied <= plan(Problem(3, 2, 4, mode="sync")).period


def test_planning_imports_neither_torch_nor_the_solver_nor_matplotlib():
    code = "import sys, cedar.simulate;print([m for m in ('torch', 'ortools', 'matplotlib') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert (found.stdout.strip(), found.stderr) == ("[]", "")
