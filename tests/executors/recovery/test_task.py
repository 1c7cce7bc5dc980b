"""Tasks through all their attempts: what is learnt from where they were lost."""

from __future__ import annotations

import time

import pytest

from cedar.executors.recovery.task import Task, Work
from cedar.executors.recovery.trial import Verdict
from cedar.operators.marks import BadRow, Mark, SlotAddress, SlotReading
from cedar.tasks.chain import Program


def lost(task: Task, mark: Mark | None, known: dict[Mark, BadRow] | None = None, limit: float = 0.0) -> BadRow | None:
    """The task is lost at a mark."""
    task.place = SlotAddress("", b"", 1, 1)
    task.marks()
    written = None if mark is None else SlotReading(mark, 1, time.monotonic() - 100, limit)
    return task.learn(written, "exit code 3", known or {})


@pytest.fixture
def task() -> Task:
    return Task(Work(Program(), lambda submit, marks: submit()))


ROW, OTHER = Mark(1, 1, (0, 0, 5, -1, 0, 0)), Mark(1, 1, (0, 0, 6, -1, 0, 0))


GROUP = Mark(1, 10, (0, 0, 0, -1, 0, 0), divisible=True)


BATCH = Mark(1, 10, (0, 0, 0, -1, 0, 0))


GUILTY = BadRow(ROW, "exit code 3, in a process of its own")


@pytest.mark.parametrize("mark", [ROW, BATCH])
def test_a_row_is_a_suspect_when_an_attempt_that_marks_rows_ends_there(task: Task, mark: Mark) -> None:
    assert lost(task, mark) is None  # a block of one row, in an attempt that marks no rows
    assert task.suspect is None
    assert lost(task, mark) is None  # nobody is guilty before a trial
    assert task.suspect == mark
    marks = task.marks()
    assert marks is not None
    assert marks.suspect == mark


def test_rows_that_die_together_twice_are_suspects(task: Task) -> None:
    assert [lost(task, GROUP), task.suspect] == [None, None]
    assert [lost(task, GROUP), task.suspect] == [None, GROUP]


def test_a_verdict_leaves_the_row_out_and_an_acquittal_sets_the_task_apart(task: Task) -> None:
    lost(task, GROUP)
    lost(task, OTHER)
    assert task.judged(Verdict(GUILTY, 1)) == GUILTY
    assert not task.apart
    marks = task.marks()
    assert marks is not None
    assert marks.bad == (GUILTY,)
    lost(task, OTHER)
    assert task.judged(Verdict()) is None
    assert task.apart
    assert task.suspect is None


def test_rows_that_end_a_process_together_alone_are_worked_on_one_by_one(task: Task) -> None:
    lost(task, GROUP)
    lost(task, GROUP)
    task.judged(Verdict(divide=GROUP))
    marks = task.marks()
    assert marks is not None
    assert marks.divided == (GROUP,)


def test_trials_that_never_find_anybody_are_hopeless(task: Task) -> None:
    for number in range(6):
        lost(task, (ROW, OTHER)[number % 2])
        if task.suspect is not None:
            task.judged(Verdict())
    assert task.hopeless


def test_a_trial_that_dies_itself_begins_anew(task: Task) -> None:
    lost(task, GROUP)
    lost(task, ROW)
    assert lost(task, OTHER) is None
    assert task.suspect == ROW


def test_a_row_known_from_another_task_needs_no_second_trial(task: Task) -> None:
    assert lost(task, GROUP, {OTHER: GUILTY}) is None
    assert lost(task, OTHER, {OTHER: GUILTY}) == GUILTY
    assert lost(task, OTHER, {OTHER: GUILTY}) is None  # without it, this place still ends processes: another one does
    assert task.suspect == OTHER


def test_a_row_that_was_too_slow_is_bad_at_once(task: Task) -> None:
    task.killed = time.monotonic()
    bad = lost(task, ROW, limit=2.0)
    assert bad is not None
    assert bad.hung
    task.killed = time.monotonic()
    assert lost(task, OTHER, limit=1000.0) is None  # it had just gone on to another row


def test_a_place_where_nothing_can_be_told_apart_is_hopeless(task: Task) -> None:
    reading = Mark(-2, 0)
    for _ in range(5):
        assert lost(task, reading) is None
        assert not task.hopeless
    lost(task, reading)
    assert task.hopeless
