"""Plans made ahead: the best spread of failures, and how to get there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.trainers.resilient.planner import Change, Problem, ahead, fitted, keep, moves, normal, plan, roles
from cedar.trainers.resilient.schedule import Costs, ScheduleError, Worker, grid, load, timeline, validate
from tests.trainers.resilient.planner.toy_problems import problems

BASE = Problem(2, 3, 4, memory="1f1b")


@given(st.data())
def test_a_plan_fits_any_dead_of_the_same_stages(data) -> None:
    counts = [data.draw(st.integers(0, 2)) for _ in range(2)]

    def some():
        return frozenset(
            Worker(stage, replica)
            for stage, count in enumerate(counts)
            for replica in data.draw(st.permutations(range(3)))[:count]
        )

    made, dead = plan(replace(BASE, dead=some())), some()
    found = fitted(made.schedule, dead)
    assert found is not None
    assert found.dead == dead
    validate(found)
    assert timeline(found, iterations=6).period == timeline(made.schedule, iterations=6).period
    other = frozenset({Worker(0, 0), Worker(0, 1), Worker(1, 0)})
    if [sum(worker.stage == stage for worker in other) for stage in range(2)] != counts:
        assert fitted(made.schedule, other) is None


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
