"""Tasks through all their attempts: what is learned from where they were lost."""

from __future__ import annotations

import time
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool

import pytest

import cedar
from cedar.executors.processes.pool import WorkerDied
from cedar.executors.recovery.task import Death, Deaths, SupervisedTask, TaskWork, is_lost
from cedar.operators.marks import BadRow, Mark, SlotAddress, SlotReading, Trial
from cedar.tasks.chain import Program


def lost(
    task: SupervisedTask, mark: Mark | None, known: dict[Mark, BadRow] | None = None, limit: float = 0.0
) -> BadRow | None:
    """The task is lost at a mark."""
    task.place = SlotAddress("", b"", 1, 1)
    task.marks()
    written = None if mark is None else SlotReading(mark, 1, time.monotonic() - 100, limit)
    return task.learn(written, "exit code 3", known or {})


@pytest.fixture
def task() -> SupervisedTask:
    return SupervisedTask(TaskWork(Program(), lambda submit, marks: submit(abs, 1)))


ROW, OTHER = Mark(1, 1, (0, 0, 5, -1, 0, 0)), Mark(1, 1, (0, 0, 6, -1, 0, 0))


GROUP = Mark(1, 10, (0, 0, 0, -1, 0, 0), divisible=True)


BATCH = Mark(1, 10, (0, 0, 0, -1, 0, 0))


GUILTY = BadRow(ROW, "exit code 3, in 2 fresh processes")


@pytest.mark.parametrize(("mark", "bad"), [(ROW, GUILTY), (BATCH, BadRow(BATCH, GUILTY.how))])
def test_a_row_is_to_blame_when_it_ends_two_fresh_processes(task: SupervisedTask, mark: Mark, bad: BadRow) -> None:
    assert lost(task, mark) is None  # a block of one row, in an attempt that marks no rows
    assert task.trial is None
    assert lost(task, mark) is None
    assert task.trial == Trial(mark, alone=mark == ROW)
    assert lost(task, mark) is None
    assert task.in_fresh_process
    assert lost(task, mark) == bad
    marks = task.marks()
    assert marks is not None
    assert (marks.trial, marks.bad, task.in_fresh_process) == (None, (bad,), False)


def test_a_block_is_to_blame_where_its_row_lives_alone(task: SupervisedTask) -> None:
    lost(task, GROUP)
    lost(task, ROW)
    task.survived()
    assert task.trial == Trial(ROW)
    assert [lost(task, OTHER), lost(task, OTHER)] == [None, BadRow(ROW, GUILTY.how, block=True)]


def test_a_task_is_run_again_apart_where_row_and_block_live(task: SupervisedTask) -> None:
    lost(task, GROUP)
    lost(task, ROW)
    task.survived()
    lost(task, ROW)  # once is not enough
    task.survived()
    assert task.in_fresh_process
    assert task.trial is None


def test_rows_that_die_together_twice_are_tried_one_by_one(task: SupervisedTask) -> None:
    assert [lost(task, GROUP), task.trial] == [None, None]
    assert [lost(task, GROUP), task.trial] == [None, Trial(GROUP, apiece=True)]
    assert [lost(task, OTHER), task.trial] == [None, Trial(OTHER, alone=True, apiece=True)]
    assert [lost(task, OTHER), lost(task, OTHER)] == [None, BadRow(OTHER, GUILTY.how)]
    marks = task.marks()
    assert marks is not None
    assert marks.divided == (GROUP,)


def test_rows_that_end_a_process_together_alone_are_worked_on_one_by_one(task: SupervisedTask) -> None:
    lost(task, GROUP)
    lost(task, GROUP)
    task.survived()
    marks = task.marks()
    assert marks is not None
    assert (marks.divided, marks.trial) == ((GROUP,), None)


def test_trials_that_never_find_anything_are_hopeless(task: SupervisedTask) -> None:
    lost(task, GROUP)
    for number in range(5):
        lost(task, (ROW, OTHER)[number % 2])
        task.survived()
        task.survived()
    assert task.max_loss


def test_a_trial_that_leaves_no_mark_begins_again(task: SupervisedTask) -> None:
    lost(task, GROUP)
    lost(task, ROW)
    assert lost(task, None) is None
    assert task.trial == Trial(ROW, alone=True)


def test_a_row_known_from_another_task_needs_no_trial(task: SupervisedTask) -> None:
    known = BadRow(OTHER, GUILTY.how)
    assert lost(task, GROUP, {OTHER: known}) is None
    assert lost(task, OTHER, {OTHER: known}) == known
    assert lost(task, OTHER, {OTHER: known}) is None  # it was left out, and yet the process died
    assert task.trial is None


def test_a_row_that_was_too_slow_is_bad_at_once(task: SupervisedTask) -> None:
    task.killed = time.monotonic()
    bad = lost(task, ROW, limit=2.0)
    assert bad is not None
    assert bad.hung
    task.killed = time.monotonic()
    assert lost(task, OTHER, limit=1000.0) is None  # it had just gone on to another row


def test_a_place_where_nothing_can_be_told_apart_is_hopeless(task: SupervisedTask) -> None:
    reading = Mark(-2, 0)
    for _ in range(5):
        assert lost(task, reading) is None
        assert not task.max_loss
    lost(task, reading)
    assert task.max_loss


def test_deaths_are_told() -> None:
    row = cedar.core.errors.RowRef(0, 0, 7, url="a.parquet", epoch=2)
    deaths = Deaths()
    deaths.add(Death("exit code 3", "map(f)", row, 1, "bad row"))
    assert str(deaths.latest[0]) == "exit code 3, at map(f), a.parquet, row 7, epoch 2; the row is a bad row"
    assert str(Death("killed by SIGKILL", "map(f)")) == "killed by SIGKILL, at map(f); its task was run again"
    assert deaths.in_a_row == deaths.count == 1
    deaths.add(Death("its result does not arrive", "map(f)"), ended=False)
    assert (deaths.in_a_row, deaths.count) == (1, 2)
    deaths.done(0.0)
    assert (deaths.in_a_row, list(deaths.recoveries)) == (0, [])
    deaths.done(time.monotonic())
    assert len(deaths.recoveries) == 1


def test_what_counts_as_lost() -> None:
    killed = type("KilledWorker", (Exception,), {"__module__": "distributed.scheduler"})
    assert all(map(is_lost, [BrokenProcessPool(""), WorkerDied("exit code 1"), CancelledError(), killed("task")]))
    assert not any(map(is_lost, [ValueError(), cedar.WorkerError("it cannot be pickled"), KeyboardInterrupt()]))
