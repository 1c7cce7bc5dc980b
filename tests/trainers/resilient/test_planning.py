"""Which plan a generation works by, what instructions were measured to take, and when workers move."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.pipelining.schedules import _Action, _ComputationType

from cedar.trainers.common import links
from cedar.trainers.resilient.control import store
from cedar.trainers.resilient.control.board import Board, Epoch
from cedar.trainers.resilient.control.protocol import PREPARED_KEYS
from cedar.trainers.resilient.control.store import Values
from cedar.trainers.resilient.executor import Superseded, Waiting
from cedar.trainers.resilient.executor.run import TimedInstruction
from cedar.trainers.resilient.manager import LOOK, WARM, WorkerDurations, measured
from cedar.trainers.resilient.planner import Problem, fitted, from_torch, plan
from cedar.trainers.resilient.planning import Planning, costs_of, prepare, publish, schedule_of
from cedar.trainers.resilient.schedule import (
    COMPUTING,
    Costs,
    Instruction,
    ScheduleError,
    Worker,
    grid,
    timeline,
    validate,
)
from cedar.trainers.resilient.simulator import Durations
from tests.trainers.resilient.toy_grid import JOB, once

BASE = Problem(2, 3, 4, memory="1f1b")
ALL = tuple(grid(2, 3))


def problem_of(dead: frozenset[Worker], costs: Costs | None = None) -> Problem:
    return replace(BASE, dead=dead, costs=costs or Costs())


def members(*dead: Worker) -> tuple[Worker, ...]:
    return tuple(worker for worker in ALL if worker not in dead)


@pytest.fixture
def planning(tmp_path) -> Planning:
    return Planning(BASE, str(tmp_path), steps=100)


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
    assert board.take("made/2") is None
    whole = schedule_of(board, Epoch(3, ALL, joins=tuple(dead)), problem_of, ALL[0])
    assert whole.schedule == plan(problem_of(frozenset())).schedule


def test_what_was_prepared_is_forgotten_when_others_may_be_next() -> None:
    board = Board(Values())
    prepare(board, Epoch(1, ALL), 0, BASE)
    before = set(board.take(PREPARED_KEYS()) or ())
    assert len(before) == len(ALL)
    alone = members(Worker(0, 1), Worker(0, 2))
    prepare(board, Epoch(2, alone), 0, BASE)
    now = set(board.take(PREPARED_KEYS()) or ())
    assert len(now) == 3  # without the last one of a stage there is no plan
    assert all(board.take(key) is None for key in before - now)
    assert all(board.take(key) for key in now)
    prepare(board, Epoch(3, ALL), 0, replace(BASE, micro_batches=400))
    assert set(board.take(PREPARED_KEYS()) or ()) == now  # what takes long is not prepared


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
        assert len(board.take(PREPARED_KEYS()) or ()) == len(ALL)
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


def told(board: Board, worker: Worker, step: list[tuple[Instruction, float, float]]) -> None:
    """A worker that carries out the same step again and again, a second later each time."""

    class Recorder:
        records: list[TimedInstruction] | None = None

    found, recorder = WorkerDurations(), Recorder()
    found.begin(recorder)  # type: ignore[arg-type]
    for number in range(WARM + LOOK):
        if recorder.records is not None:
            recorder.records += [
                TimedInstruction(number, done, number + began, number + ended) for done, began, ended in step
            ]
        assert board.take(f"durations/{worker}") is None
        found.tell(board, worker)
    assert recorder.records is None


def test_what_instructions_take_is_told_once_and_who_waited_for_nobody_counts() -> None:
    board, schedule = Board(Values()), plan(Problem(2, 1, 1)).schedule
    there, back = Instruction("SEND_F", 0, 0, 0), Instruction("SEND_B", 0, 0, 0)
    one, two, meets = Worker(0, 0), Worker(1, 0), Instruction("ALL_REDUCE")
    told(board, one, [
        (Instruction("F", 0, 0), 0.0, 0.1), (there, 0.1, 0.11), (back._replace(kind="RECV_B"), 0.11, 0.34),
        (meets, 0.34, 0.4), (Instruction("STEP"), 0.4, 0.5),
    ])  # fmt: skip
    assert measured(board, [one, two], schedule) is None
    told(board, two, [
        (there._replace(kind="RECV_F"), 0.0, 0.13), (Instruction("B_INPUT", 0, 0), 0.13, 0.3), (back, 0.3, 0.3),
        (meets, 0.3, 0.4), (Instruction("STEP"), 0.4, 0.9),
    ])  # fmt: skip
    found = measured(board, [one, two], schedule)
    assert found is not None
    assert found(one, Instruction("F", 0, 0)) == pytest.approx(0.1)
    assert found(two, Instruction("B_INPUT", 0, 0)) == pytest.approx(0.17)
    assert [found(one, meets), found(two, meets)] == pytest.approx([0.06, 0.1])
    assert found(two, Instruction("STEP")) == pytest.approx(0.5)  # staggered stages do not meet there
    assert found.transfer == pytest.approx((0.02 + 0.04) / 2)
    assert found.costs(2).step == pytest.approx(0.5)
    sync = measured(board, [one, two], plan(Problem(2, 1, 1, mode="sync", tied=True)).schedule)
    assert sync is not None
    assert [sync(two, meets), sync(two, Instruction("STEP"))] == pytest.approx([0.06, 0.1])


def test_a_message_that_lay_there_tells_nothing_of_its_way() -> None:
    board, send = Board(Values()), Instruction("SEND_F", 0, 0, 0)
    told(board, Worker(0, 0), [(send, 0.0, 0.1)])
    told(board, Worker(1, 0), [(send._replace(kind="RECV_F"), 0.5, 0.51)])
    found = measured(board, list(grid(2, 1)), plan(Problem(2, 1, 1)).schedule)
    assert found is not None
    assert found.transfer == 0


def test_moves_are_thought_of_once_a_generation_and_made_where_they_pay(planning) -> None:
    board = Board(Values())
    planning.publish(board)
    epoch = Epoch(2, members(Worker(0, 0), Worker(0, 1)))
    before = plan(problem_of(frozenset({Worker(0, 0), Worker(0, 1)}))).period
    board.put("period/2", before)
    steps = [0.1] * 10
    assert planning.change(board, epoch, 2, steps, 1.0) is None  # it has not settled
    found = planning.change(board, epoch, 5, steps, 1.0)
    assert found is not None
    (move,) = found.moves
    assert (move.worker.stage, move.role.stage) == (1, 0)
    assert found.after < found.before == before
    assert planning.change(board, epoch, 6, steps, 1.0) is None  # that was looked at
    board.put("period/3", before)
    assert planning.change(board, replace(epoch, number=3), 6, steps, 1000.0) is None  # it does not pay


def test_a_job_says_what_is_planned_for() -> None:
    assert JOB.problem(frozenset(), Costs(forward=2)).costs.forward == 2


# ---- schedules of torch ----------------------------------------------------------------------------------------------


def written(path, ranks) -> str:
    """As torch writes what its schedules compute."""
    lines = []
    for rank in ranks:
        cells = ["" if action is None else str(_Action(*action)) for action in rank]
        lines.append(",".join(cells))
    path.write_text("\n".join(lines) + "\n")
    return str(path)


F, B, BI, W = (_ComputationType[name] for name in ("FORWARD", "FULL_BACKWARD", "BACKWARD_INPUT", "BACKWARD_WEIGHT"))
FUSED = [
    [(0, F, 0), (0, F, 1), None, (0, B, 0), (0, F, 2), (0, B, 1), None, (0, B, 2)],
    [None, (1, F, 0), (1, B, 0), (1, F, 1), (1, B, 1), (1, F, 2), (1, B, 2)],
]
SPLIT = [
    [(0, F, 0), (0, F, 1), (0, F, 2), (0, BI, 0), (0, W, 0), (0, BI, 1), (0, W, 1), (0, BI, 2), (0, W, 2)],
    [None, (1, F, 0), (1, BI, 0), (1, F, 1), (1, BI, 1), (1, W, 0), (1, F, 2), (1, BI, 2), (1, W, 1), (1, W, 2)],
]


@pytest.mark.parametrize("ranks", [FUSED, SPLIT])
def test_a_schedule_of_torch_gives_the_bits_of_ours(tmp_path, ranks) -> None:
    problem = Problem(2, 2, 3, memory=3, tied=True, mode="sync")
    made = from_torch(written(tmp_path / "torch.csv", ranks), problem)
    kinds = [(done.kind, done.micro_batch) for done in made.schedule.work[Worker(1, 0)] if done.kind in COMPUTING]
    names = {F: "F", B: "B", BI: "B_INPUT", W: "B_WEIGHT"}
    assert kinds == [(names[action[1]], action[2]) for action in ranks[1] if action is not None]
    (theirs, _), (ours, _) = once(made.schedule), once(plan(problem).schedule)
    for worker, result in ours.items():
        assert torch.equal(theirs[worker].gradient, result.gradient)
        assert theirs[worker].losses == result.losses


def test_a_run_works_by_it_while_nobody_is_dead(tmp_path) -> None:
    path, problem = written(tmp_path / "torch.csv", FUSED), Problem(2, 2, 3, memory="1f1b")
    made, board = Planning(problem, str(tmp_path), 100, schedule=path), Board(Values())
    made.publish(board)
    of = lambda dead, costs=None: replace(problem, dead=dead)
    everybody = tuple(grid(2, 2))
    assert schedule_of(board, Epoch(1, everybody), of, ALL[0]).schedule == from_torch(path, problem).schedule
    dead = frozenset({Worker(0, 1)})
    survivors = tuple(worker for worker in everybody if worker not in dead)
    assert schedule_of(board, Epoch(2, survivors, detected=1.0), of, ALL[0]).schedule == plan(of(dead)).schedule
    seconds = {("F", 0): 1.0, ("B", 0): 2.0, ("F", 1): 1.0, ("B", 1): 4.0}
    assert Durations(seconds).costs(2).stage(1) == (1.0, 2.0, 2.0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0F0,0B0\n", "is for 1 ranks"),
        ("0F0,0B0\n0F0,1B0\n", "rank 1: '0F0' is no F, B, I or W of stage 1"),
        ("0F0,0SEND_F0,0B0\n1F0,1B0\n", "'0SEND_F0' is no F"),
        ("0F0,0B0\n1F0\n", "rank 1: B or B_INPUT is not there once for each of 1"),
        ("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n", "rank 0: F is not there once for each of 1"),
        ("0B0,0F0\n1F0,1B0\n", "the schedule is wrong"),
    ],
)
def test_what_is_no_schedule_for_a_run_is_told(tmp_path, text, told) -> None:
    path = tmp_path / "torch.csv"
    path.write_text(text)
    with pytest.raises(ScheduleError, match=re.escape(told)):
        from_torch(str(path), Problem(2, 2, 1))
    with pytest.raises(ScheduleError, match="cannot be read"):
        from_torch(str(tmp_path / "none.csv"), Problem(2, 2, 1))


def test_plans_are_made_ahead_by_the_exact_planner_where_that_is_asked_for(tmp_path):
    pytest.importorskip("ortools")
    problem = Problem(2, 2, 2, memory="1f1b")
    made = Planning(problem, str(tmp_path), 100, exact=2.0).plans
    quick = Planning(problem, str(tmp_path), 100).plans
    assert {one.method for one in made.values()} == {"exact"}
    assert all(made[count].period <= quick[count].period for count in quick)
    assert made[0].optimal
