"""Which plan a generation works by, what instructions were measured to take, and when workers move."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from cedar.trainers.resilient.control.board import Board, Epoch
from cedar.trainers.resilient.durations import LOOK, WARM, Told, measured
from cedar.trainers.resilient.executor import Superseded, Waiting
from cedar.trainers.resilient.planner import Problem, fitted, plan
from cedar.trainers.resilient.planning import Planning, costs_of, publish, schedule_of
from cedar.trainers.resilient.schedule import Costs, Instruction, Worker, grid, timeline, validate
from tests.trainers.resilient.toy_grid import JOB

BASE = Problem(2, 3, 4, memory="1f1b")
ALL = tuple(grid(2, 3))


def problem_of(dead: frozenset[Worker], costs: Costs | None = None) -> Problem:
    return replace(BASE, dead=dead, costs=costs or Costs())


def members(*dead: Worker) -> tuple[Worker, ...]:
    return tuple(worker for worker in ALL if worker not in dead)


@pytest.fixture
def planning(tmp_path) -> Planning:
    return Planning(BASE, str(tmp_path), steps=100)


@settings(max_examples=25)
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


def test_a_failure_is_planned_for_at_once_and_a_boundary_takes_the_plan_made_ahead(planning) -> None:
    board = Board(HashStore())
    planning.publish(board)
    dead = Worker(0, 1)
    there = members(dead)
    at_once = schedule_of(board, Epoch(2, there, detected=1.0), problem_of, ALL[0])
    assert at_once.schedule == plan(problem_of(frozenset({dead}))).schedule
    later = schedule_of(board, Epoch(3, there, joins=(Worker(0, 0),)), problem_of, ALL[0])
    ahead = planning.plans[1]
    expected = fitted(ahead.schedule, frozenset({dead})) or at_once.schedule
    assert later.schedule == expected
    validate(later.schedule)


def test_one_worker_plans_for_all(planning) -> None:
    board = Board(HashStore())
    epoch = Epoch(2, members(Worker(0, 1)), detected=1.0)
    first, *others = epoch.members
    made = schedule_of(board, epoch, problem_of, first, Waiting(2, lambda: 2, 5))
    assert {schedule_of(board, epoch, problem_of, o, Waiting(2, lambda: 2, 5)).period for o in others} == {made.period}
    assert schedule_of(board, epoch, problem_of, others[0], Waiting(2, lambda: 2, 5)).schedule == made.schedule
    with pytest.raises(Superseded):  # the one who plans has died
        schedule_of(board, replace(epoch, number=3), problem_of, others[0], Waiting(3, lambda: 4, 5))


def test_plans_of_a_later_version_are_made_for_what_was_measured(tmp_path) -> None:
    board = Board(HashStore())
    costs = Costs((1.0, 2.0), (1.0, 2.0), (0.5, 1.0), 0, 0.1, 0.2)
    problem = replace(BASE, costs=costs)
    publish(board, 1, problem, {0: plan(problem)}, str(tmp_path))
    assert costs_of(board, 0) == Costs()
    assert costs_of(board, 1) == costs
    assert schedule_of(board, Epoch(2, ALL, plans=1), problem_of, ALL[0]).period == plan(problem).period


def test_medians_are_told_once_and_who_waited_for_nobody_counts() -> None:
    class Recorder:
        records = None

    board = Board(HashStore())
    for worker, wait in ((Worker(0, 0), 5.0), (Worker(1, 0), 1.0)):
        told, recorder = Told(), Recorder()
        told.begin(recorder)
        for step in range(WARM + LOOK):
            if recorder.records is not None:
                recorder.records += [
                    (worker, Instruction("F", 0, 0), 0.1 + step / 1000), (worker, Instruction("ALL_REDUCE"), wait),
                ]  # fmt: skip
            told.stepped(0.5)
            assert measured(board, [worker]) is None
            told.tell(board, worker)
        assert recorder.records is None
    found = measured(board, [Worker(0, 0), Worker(1, 0)])
    assert found is not None
    assert found(Worker(0, 0), Instruction("F", 0, 0)) == pytest.approx(0.104)
    costs = found.costs(2)
    assert costs.reduce == 5.0
    assert costs.step == 0.5
    assert found.costs(2).stage(0)[0] == found.costs(2).stage(1)[0]


def test_moves_are_thought_of_once_a_generation_and_made_where_they_pay(planning) -> None:
    board = Board(HashStore())
    planning.publish(board)
    epoch = Epoch(2, members(Worker(0, 0), Worker(0, 1)))
    before = plan(problem_of(frozenset({Worker(0, 0), Worker(0, 1)}))).period
    board.put("period/2", before)
    steps = [0.1] * 10
    assert planning.change(board, epoch, 2, steps, 1.0) is None  # it has not settled
    found = planning.change(board, epoch, 5, steps, 1.0)
    assert found is not None
    (move,) = found[0].moves
    assert (move.worker.stage, move.role.stage) == (1, 0)
    assert found[1] == pytest.approx(0.1 * (1 - found[0].after / before))
    assert planning.change(board, epoch, 6, steps, 1.0) is None  # that was looked at
    board.put("period/3", before)
    assert planning.change(board, replace(epoch, number=3), 6, steps, 1000.0) is None  # it does not pay


def test_a_job_says_what_is_planned_for() -> None:
    assert JOB.problem(frozenset(), Costs(forward=2)).costs.forward == 2
