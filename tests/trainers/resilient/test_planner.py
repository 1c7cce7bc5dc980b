"""Plans are proven, the same everywhere, within their memory, and as short as they can be."""

import random
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.trainers.resilient.planner import (
    Change,
    Problem,
    ahead,
    exact,
    keep,
    moves,
    normal,
    one_f_one_b,
    plan,
    roles,
    zero_bubble,
)
from cedar.trainers.resilient.schedule import Costs, ScheduleError, Worker, grid, load, timeline, validate

LONE = frozenset({Worker(2, 1)})


@st.composite
def problems(draw):
    stages, replicas, micro_batches = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 5))
    dead = draw(st.sets(st.sampled_from(list(grid(stages, replicas))), max_size=4))
    dead -= {Worker(stage, draw(st.integers(0, replicas - 1))) for stage in range(stages)}
    each = st.tuples(*[st.sampled_from([1, 2, 0.7])] * stages)
    costs = Costs(
        draw(each), draw(each), draw(each), transfer=draw(st.sampled_from([0, 0, 0.3, 2])),
        reduce=draw(st.sampled_from([0, 1])), step=draw(st.sampled_from([0, 0.5])),
    )  # fmt: skip
    memory = draw(st.sampled_from([None, "1f1b", "stage 1f1b", 1, 3]))
    mode = draw(st.sampled_from(["sync", "staggered"]))
    return Problem(stages, replicas, micro_batches, frozenset(dead), memory, mode, costs, draw(st.booleans()))


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


@given(problems())
def test_work_is_spread_evenly_over_the_live_workers_of_a_stage(problem):
    for stage, routes in enumerate(problem.routes):
        taken = [routes.count(replica) - problem.micro_batches for replica in problem.alive(stage)]
        assert max(taken) - min(taken) <= 1
        assert sum(taken) == problem.micro_batches * (problem.replicas - len(taken))
        assert problem.load[stage] == max(taken) + problem.micro_batches


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (2, 5), (3, 2), (4, 8), (6, 3)])
def test_1f1b_without_failures_is_the_textbook_order(stages, micro_batches):
    schedule = one_f_one_b(Problem(stages, 2, micro_batches))
    for worker, instructions in schedule.work.items():
        warm = min(stages - worker.stage - 1, micro_batches)
        kinds = "F" * warm + "FB" * (micro_batches - warm) + "B" * warm
        assert "".join(s.kind for s in instructions if s.kind in {"F", "B"}) == kinds
    assert timeline(schedule).makespan == 3 * (micro_batches + stages - 1)
    for worker, live in validate(schedule).live.items():
        assert live == min(stages - worker.stage, micro_batches)


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
    free, tied = plan(Problem(3, 2, 4)).period, plan(Problem(3, 2, 4, tied=True)).period
    assert free < tied <= plan(Problem(3, 2, 4, mode="sync")).period


def test_a_problem_that_cannot_be_planned_is_refused():
    for numbers in ((0, 1, 1), (1, 0, 1), (1, 1, 0), (True, 1, 1), (1.0, 1, 1)):
        with pytest.raises(ScheduleError, match="whole number"):
            Problem(*numbers)
    with pytest.raises(ScheduleError, match="stage 1 has no live worker"):
        Problem(2, 1, 1, frozenset({Worker(1, 0)}))
    with pytest.raises(ScheduleError, match="not in a grid"):
        Problem(2, 1, 1, frozenset({Worker(2, 0)}))
    with pytest.raises(ScheduleError, match="mode"):
        Problem(2, 1, 1, mode="fast")
    for memory in (0, "2f2b"):
        with pytest.raises(ScheduleError, match="memory"):
            Problem(2, 1, 1, memory=memory)
    with pytest.raises(ScheduleError, match="3 values for 2 stages"):
        Problem(2, 1, 1, costs=Costs(forward=(1, 1, 1)))


# ---- the exact planner -----------------------------------------------------------------------------------------------


def test_the_exact_planner_proves_the_known_optima():
    pytest.importorskip("ortools")
    free = exact(Problem(4, 3, 6, LONE), seconds=20, workers=2)
    assert (free.period, free.bound, free.optimal, free.method) == (27, 27, True, "exact")
    together = exact(Problem(2, 2, 3, frozenset({Worker(1, 1)}), mode="sync"), seconds=20, workers=2)
    assert together.optimal
    assert together.period == together.makespan == 19


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


# ---- plans made ahead ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failures", range(7))
def test_the_normal_spread_is_the_best_of_all(failures):
    problem = Problem(3, 3, 4, costs=Costs(forward=(1, 2, 1)))
    counts = lambda dead: [sum(w.stage == stage for w in dead) for stage in range(3)]
    slowest = lambda c: max((4 + -(-4 * d // (3 - d))) * f for d, f in zip(c, (3, 4, 3), strict=True))
    all_counts = [(a, b, c) for a in range(3) for b in range(3) for c in range(3) if a + b + c == failures]
    assert slowest(counts(normal(problem, failures))) == min(map(slowest, all_counts))


def test_too_many_failures_cannot_be_planned_ahead():
    with pytest.raises(ScheduleError, match="7 failures"):
        normal(Problem(3, 3, 4), 7)
    with pytest.raises(ScheduleError, match="4 at most"):
        ahead(Problem(2, 3, 4), 5)


def test_plans_made_ahead_are_kept_with_the_run(tmp_path):
    problem = Problem(3, 2, 3, memory="1f1b", costs=Costs(forward=(1, 2, 1)))
    plans = ahead(problem, 2)
    keep(plans, str(tmp_path / "plans"))
    found = [load(str(tmp_path / "plans" / f"plan_{count}.json")) for count in range(3)]
    assert found == [made.schedule for made in plans.values()]
    assert [len(schedule.dead) for schedule in found] == [0, 1, 2]


@given(problems())
def test_moves_lead_to_the_normal_spread_and_roles_to_its_plan(problem):
    made = moves(problem)
    target = normal(problem, len(problem.dead))
    dead = (problem.dead - {m.role for m in made}) | {m.worker for m in made}
    assert all(m.worker not in problem.dead and m.role in problem.dead and m.worker.stage != m.role.stage for m in made)
    assert len(dead) == len(problem.dead)
    assert sorted(w.stage for w in dead) == sorted(w.stage for w in target)
    played = roles(dead, target, problem.stages, problem.replicas)
    assert set(played) == set(grid(problem.stages, problem.replicas)) - dead
    assert set(played.values()) == set(grid(problem.stages, problem.replicas)) - target
    assert all(worker.stage == role.stage for worker, role in played.items())


def test_moving_pays_when_it_is_won_back_in_time():
    problem = Problem(2, 3, 6, frozenset({Worker(0, 0), Worker(0, 1)}))
    found = Change(moves(problem), plan(problem).period, ahead(problem, 2)[2].period)
    assert (found.before, found.after) == (54, 27)
    assert found.pays(seconds=10, slot=0.1, steps=4)
    assert not found.pays(seconds=10, slot=0.1, steps=3)
    assert not Change(moves(replace(problem, dead=normal(problem, 2))), 54, 27).pays(0.0, 1.0, 1000)
    with pytest.raises(ScheduleError, match="stage 0 has 1 live workers, the plan is for 2"):
        roles(problem.dead, normal(problem, 2), 2, 3)


def test_zero_bubble_is_the_plan_of_a_strict_policy():
    assert validate(zero_bubble(Problem(3, 2, 4))).live[Worker(0, 0)] <= 3


def test_planning_imports_neither_torch_nor_the_solver_nor_matplotlib():
    code = (
        "import sys, cedar.trainers.resilient.simulator;"
        "print([m for m in ('torch', 'ortools', 'matplotlib') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert (found.stdout.strip(), found.stderr) == ("[]", "")
