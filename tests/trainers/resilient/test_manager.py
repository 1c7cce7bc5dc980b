"""What instructions were measured to take: who waited for no other worker counts."""

from __future__ import annotations

import pytest

from cedar.trainers.resilient.control.board import Board
from cedar.trainers.resilient.control.store import Values
from cedar.trainers.resilient.executor.run import TimedInstruction
from cedar.trainers.resilient.manager import MEASURED_STEPS, WARMUP_STEPS, WorkerDurations, measure_durations
from cedar.trainers.resilient.planner import Problem, plan
from cedar.trainers.resilient.schedule import Instruction, Worker, grid


def describe(board: Board, worker: Worker, step: list[tuple[Instruction, float, float]]) -> None:
    """A worker that carries out the same step repeatedly, a second later each time."""

    class Recorder:
        records: list[TimedInstruction] | None = None

    found, recorder = WorkerDurations(), Recorder()
    found.begin(recorder)  # type: ignore[arg-type]
    for number in range(WARMUP_STEPS + MEASURED_STEPS):
        if recorder.records is not None:
            recorder.records += [
                TimedInstruction(number, done, number + began, number + ended) for done, began, ended in step
            ]
        assert board.get(f"durations/{worker}") is None
        found.after_step(board, worker)
    assert recorder.records is None


def test_what_instructions_take_is_told_once_and_who_waited_for_nobody_counts() -> None:
    board, schedule = Board(Values()), plan(Problem(2, 1, 1)).schedule
    there, back = Instruction("SEND_F", 0, 0, 0), Instruction("SEND_B", 0, 0, 0)
    one, two, meets = Worker(0, 0), Worker(1, 0), Instruction("ALL_REDUCE")
    describe(board, one, [
        (Instruction("F", 0, 0), 0.0, 0.1), (there, 0.1, 0.11), (back._replace(kind="RECV_B"), 0.11, 0.34),
        (meets, 0.34, 0.4), (Instruction("STEP"), 0.4, 0.5),
    ])  # fmt: skip
    assert measure_durations(board, [one, two], schedule) is None
    describe(board, two, [
        (there._replace(kind="RECV_F"), 0.0, 0.13), (Instruction("B_INPUT", 0, 0), 0.13, 0.3), (back, 0.3, 0.3),
        (meets, 0.3, 0.4), (Instruction("STEP"), 0.4, 0.9),
    ])  # fmt: skip
    found = measure_durations(board, [one, two], schedule)
    assert found is not None
    assert found(one, Instruction("F", 0, 0)) == pytest.approx(0.1)
    assert found(two, Instruction("B_INPUT", 0, 0)) == pytest.approx(0.17)
    assert [found(one, meets), found(two, meets)] == pytest.approx([0.06, 0.1])
    assert found(two, Instruction("STEP")) == pytest.approx(0.5)  # staggered stages do not meet there
    assert found.transfer == pytest.approx((0.02 + 0.04) / 2)
    assert found.costs(2).step == pytest.approx(0.5)
    sync = measure_durations(board, [one, two], plan(Problem(2, 1, 1, mode="sync", tied=(0, 1))).schedule)
    assert sync is not None
    assert [sync(two, meets), sync(two, Instruction("STEP"))] == pytest.approx([0.06, 0.1])


def test_a_message_that_lay_there_tells_nothing_of_its_way() -> None:
    board, send = Board(Values()), Instruction("SEND_F", 0, 0, 0)
    describe(board, Worker(0, 0), [(send, 0.0, 0.1)])
    describe(board, Worker(1, 0), [(send._replace(kind="RECV_F"), 0.5, 0.51)])
    found = measure_durations(board, list(grid(2, 1)), plan(Problem(2, 1, 1)).schedule)
    assert found is not None
    assert found.transfer == 0
