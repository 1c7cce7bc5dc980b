"""Which plan a generation works by, what it is made for, and when workers move."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cedar.simulate import Durations
from cedar.trainers.common import links
from cedar.trainers.resilient.control import store
from cedar.trainers.resilient.control.board import Board, Epoch
from cedar.trainers.resilient.control.protocol import PREPARED_KEYS
from cedar.trainers.resilient.control.store import Values
from cedar.trainers.resilient.executor import Superseded, Waiting
from cedar.trainers.resilient.planner import Problem, fitted, from_torch, plan
from cedar.trainers.resilient.planning import Planning, costs_of, prepare, publish, schedule_of
from cedar.trainers.resilient.schedule import Costs, Worker, grid, validate
from tests.trainers.resilient.planner.toy_torch import FUSED, written

BASE = Problem(2, 3, 4, memory="1f1b")
ALL = tuple(grid(2, 3))


def problem_of(dead: frozenset[Worker], costs: Costs | None = None) -> Problem:
    return replace(BASE, dead=dead, costs=costs or Costs())


def members(*dead: Worker) -> tuple[Worker, ...]:
    return tuple(worker for worker in ALL if worker not in dead)


@pytest.fixture
def planning(tmp_path) -> Planning:
    return Planning(BASE, str(tmp_path), steps=100)


def test_a_failure_is_planned_for_at_once_and_a_boundary_takes_the_plan_made_ahead(planning) -> None:
    board = Board(Values())
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
    board = Board(Values())
    epoch = Epoch(2, members(Worker(0, 1)), detected=1.0)
    first, *others = epoch.members
    made = schedule_of(board, epoch, problem_of, first, Waiting(2, lambda: 2, 5))
    assert {schedule_of(board, epoch, problem_of, o, Waiting(2, lambda: 2, 5)).period for o in others} == {made.period}
    assert schedule_of(board, epoch, problem_of, others[0], Waiting(2, lambda: 2, 5)).schedule == made.schedule
    with pytest.raises(Superseded):  # the one who plans has died
        schedule_of(board, replace(epoch, number=3), problem_of, others[0], Waiting(3, lambda: 4, 5))


def test_a_plan_that_was_prepared_is_the_one_that_would_be_made() -> None:
    board = Board(Values())
    prepare(board, Epoch(1, ALL), 0, BASE)
    dead = frozenset({Worker(0, 1)})
    epoch = Epoch(2, members(*dead), detected=1.0)
    made = plan(problem_of(dead))
    for worker in epoch.members:
        found = schedule_of(board, epoch, problem_of, worker, Waiting(2, lambda: 3, 5))
        assert (found.schedule, found.period) == (made.schedule, made.period)
    assert board.get("made/2") is None
    whole = schedule_of(board, Epoch(3, ALL, joins=tuple(dead)), problem_of, ALL[0])
    assert whole.schedule == plan(problem_of(frozenset())).schedule


def test_what_was_prepared_is_forgotten_when_others_may_be_next() -> None:
    board = Board(Values())
    prepare(board, Epoch(1, ALL), 0, BASE)
    before = set(board.get(PREPARED_KEYS()) or ())
    assert len(before) == len(ALL)
    alone = members(Worker(0, 1), Worker(0, 2))
    prepare(board, Epoch(2, alone), 0, BASE)
    now = set(board.get(PREPARED_KEYS()) or ())
    assert len(now) == 3  # without the last one of a stage there is no plan
    assert all(board.get(key) is None for key in before - now)
    assert all(board.get(key) for key in now)
    prepare(board, Epoch(3, ALL), 0, replace(BASE, micro_batches=400))
    assert set(board.get(PREPARED_KEYS()) or ()) == now  # what takes long is not prepared


def test_plans_are_prepared_in_a_process_of_their_own(planning) -> None:
    key = b"k" * links.KEY
    process, port = store.start("127.0.0.1", 0, key)
    try:
        board = Board(store.connect("127.0.0.1", port, key))
        board.begin(Epoch(1, ALL))
        planning.prepare(1, 0, lambda: store.connect("127.0.0.1", port, key))
        planning.prepare(1, 0, lambda: pytest.fail("once is enough"))
        planning._process.join(60)
        planning.stop()
        assert len(board.get(PREPARED_KEYS()) or ()) == len(ALL)
        planning.stop()
    finally:
        process.kill()
        process.join()


def test_plans_of_a_later_version_are_made_for_what_was_measured(tmp_path) -> None:
    board = Board(Values())
    costs = Costs((1.0, 2.0), (1.0, 2.0), (0.5, 1.0), 0, 0.1, 0.2)
    problem = replace(BASE, costs=costs)
    publish(board, 1, problem, {0: plan(problem)}, str(tmp_path))
    assert costs_of(board, 0) == Costs()
    assert costs_of(board, 1) == costs
    assert schedule_of(board, Epoch(2, ALL, plans=1), problem_of, ALL[0]).period == plan(problem).period


def test_moves_are_thought_of_once_a_generation_and_made_where_they_pay(planning) -> None:
    board = Board(Values())
    planning.publish(board)
    epoch = Epoch(2, members(Worker(0, 0), Worker(0, 1)))
    before = plan(problem_of(frozenset({Worker(0, 0), Worker(0, 1)}))).period
    board.put("period/2", before)
    steps = [0.1] * 10
    assert planning.find_change(board, epoch, 2, steps, 1.0) is None  # it has not settled
    found = planning.find_change(board, epoch, 5, steps, 1.0)
    assert found is not None
    (move,) = found.moves
    assert (move.worker.stage, move.role.stage) == (1, 0)
    assert found.after < found.before == before
    assert planning.find_change(board, epoch, 6, steps, 1.0) is None  # that was inspected
    board.put("period/3", before)
    assert planning.find_change(board, replace(epoch, number=3), 6, steps, 1000.0) is None  # it does not pay


# ---- schedules of torch ----------------------------------------------------------------------------------------------


def test_a_run_works_by_it_while_nobody_is_dead(tmp_path) -> None:
    path, problem = written(tmp_path / "torch.csv", FUSED), Problem(2, 2, 3, memory="1f1b")
    made, board = Planning(problem, str(tmp_path), 100, schedule=path), Board(Values())
    made.publish(board)
    of = lambda dead, costs=None: replace(problem, dead=dead)
    everybody = tuple(grid(2, 2))
    given = from_torch(path, problem).schedule
    assert schedule_of(board, Epoch(1, everybody), of, ALL[0]).schedule == given
    assert schedule_of(board, Epoch(2, everybody, detected=1.0), of, ALL[0]).schedule == given  # a lost connection
    assert schedule_of(board, Epoch(3, everybody, lost=(1,)), of, ALL[0]).schedule == given
    dead = frozenset({Worker(0, 1)})
    survivors = tuple(worker for worker in everybody if worker not in dead)
    assert schedule_of(board, Epoch(2, survivors, detected=1.0), of, ALL[0]).schedule == plan(of(dead)).schedule
    seconds = {("F", 0): 1.0, ("B", 0): 2.0, ("F", 1): 1.0, ("B", 1): 4.0}
    assert Durations(seconds).costs(2).stage(1) == (1.0, 2.0, 2.0)


@pytest.mark.heavy
def test_plans_are_made_ahead_by_the_exact_planner_where_that_is_asked_for(tmp_path):
    pytest.importorskip("ortools")
    problem = Problem(2, 2, 2, memory="1f1b")
    made = Planning(problem, str(tmp_path), 100, exact=2.0).plans
    quick = Planning(problem, str(tmp_path), 100).plans
    assert {one.method for one in made.values()} == {"exact"}
    assert all(made[count].period <= quick[count].period for count in quick)
    assert made[0].optimal
