"""Marks: what a process leaves behind of where it was, and what is made of it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar.executors.processes import memory
from cedar.executors.recovery.board import Board
from cedar.executors.recovery.deaths import Death, Deaths
from cedar.executors.recovery.task import Task, Work
from cedar.executors.recovery.trial import Verdict
from cedar.operators.marks import BadRow, Mark, Marks, SlotAddress, SlotReading
from cedar.tasks.chain import Program
from tests.toy_blocks import block

INT = st.integers(-(2**62), 2**62)


@pytest.fixture(scope="module")
def board() -> Board:
    return Board()


def seen(board: Board, marks: Marks) -> SlotReading:
    found = board.read(marks.place)
    assert found is not None
    return found


def marks_on(board: Board, **known: Any) -> Marks:
    place = board.take()
    assert place is not None
    return Marks(place, **known)


def test_what_is_written_is_read(board: Board) -> None:
    marks = marks_on(board, fine=True)
    assert board.read(marks.place) is None
    marks.enter(4, block(x=[10, 11, 12]), True)
    assert seen(board, marks).mark == Mark(4, 3, (0, 0, 0, -1, 0, 0), divisible=True)
    called = []

    def note(x: int) -> int:
        called.append(seen(board, marks).mark)
        return x

    with marks.calls():
        assert list(map(marks.guard(note, 3, None), [10, 11, 12])) == [10, 11, 12]
    assert called == [Mark(4, 1, (0, 0, row, -1, 0, 0)) for row in range(3)]
    assert seen(board, marks).mark.rows == 3
    assert seen(board, marks).pid == os.getpid()
    board.give(marks.place)


def test_only_what_needs_it_is_marked_by_the_row(board: Board) -> None:
    marks = marks_on(board)
    marks.enter(4, block(x=[1, 2]), True)
    assert marks.guard(abs, 2, None) is abs
    assert marks.guard(abs, 2, 1.0) is not abs
    assert not marks.watched  # by another process


def test_bad_rows_are_not_called(board: Board) -> None:
    row = BadRow(Mark(4, 1, (0, 0, 1, -1, 0, 0)), "killed by SIGSEGV")
    slow = BadRow(Mark(4, 1, (0, 0, 2, -1, 0, 0)), "no result within timeout=2 s", hung=True)
    marks = marks_on(board, bad=(row, slow))
    marks.enter(4, block(x=[5, 6, 7]), True)
    guarded = marks.guard(lambda x: x, 3, None)
    assert guarded(5) == 5
    with pytest.raises(Exception, match="killed by SIGSEGV"):
        guarded(6)
    with pytest.raises(TimeoutError, match="no result within timeout=2 s"):
        guarded(7)
    marks.enter(5, block(x=[5, 6, 7]), True)  # another operator
    assert list(map(marks.guard(abs, 3, None), [5, 6, 7])) == [5, 6, 7]


@given(st.tuples(*[INT] * 6), INT, INT)
def test_a_mark_that_was_not_finished_counts_for_nothing(key: Any, operator: int, rows: int) -> None:
    board = Board()
    marks = marks_on(board)
    marks._set(Mark(operator, rows, key))
    assert seen(board, marks).mark == Mark(operator, rows, key)
    at = marks.place.number * 128
    board._page[at] ^= 1  # the number at its beginning is that of the next one
    assert board.read(marks.place) is None
    os.close(board._fd)


def test_a_slot_is_empty_when_it_is_taken_again() -> None:
    board = Board()
    places = [board.take() for _ in range(1024)]
    assert places[-1] is None
    for place in places[:-1]:
        assert place is not None
        Marks(place).reading(0, 1, 2)
        board.give(place)
    again = board.take()
    assert again is not None
    assert board.read(again) is None
    os.close(board._fd)


def test_another_process_writes_where_this_one_reads(board: Board) -> None:
    marks = marks_on(board, fine=True)
    code = "import pickle, sys; m = pickle.load(sys.stdin.buffer); assert m.watched; m.reading(3, 2, 7)"
    subprocess.run([sys.executable, "-c", code], input=pickle.dumps(marks), check=True, timeout=60)
    assert seen(board, marks).mark.key[:3] == (3, 2, 7)
    assert seen(board, marks).pid != os.getpid()


def test_a_page_that_is_not_there_or_another_s_is_left_alone(board: Board, tmp_path: Path) -> None:
    other = tmp_path / "page"
    other.write_bytes(bytes(1 << 16))
    place = board.take()
    assert place is not None
    for path in (str(other), str(tmp_path / "missing")):
        marks = Marks(replace(place, path=path), fine=True)
        marks.enter(1, block(x=[1]), True)
        assert list(map(marks.guard(abs, 1, None), [-1])) == [1]
        assert not Marks(replace(place, path=path, owner=0)).watched
    assert other.read_bytes() == bytes(1 << 16)


# ---- what is learnt from them ----------------------------------------------------------------------------------------


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


# ---- deaths, and memory ----------------------------------------------------------------------------------------------


def test_deaths_are_told() -> None:
    row = cedar.core.errors.RowRef(0, 0, 7, url="a.parquet", epoch=2)
    deaths = Deaths()
    deaths.add(Death("exit code 3", "map(f)", row, 1, "bad row"))
    assert str(deaths.latest[0]) == "exit code 3, at map(f), a.parquet, row 7, epoch 2; the row is a bad row"
    assert str(Death("killed by SIGKILL", "map(f)")) == "killed by SIGKILL, at map(f); its task was run again"
    assert deaths.in_a_row == deaths.count == 1
    deaths.done(0.0)
    assert (deaths.in_a_row, list(deaths.recoveries)) == (0, [])
    deaths.done(time.monotonic())
    assert len(deaths.recoveries) == 1


def test_one_kill_for_memory_explains_one_death(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    events = tmp_path / "memory.events"
    monkeypatch.setattr(memory, "_places", lambda: [str(tmp_path / "missing"), str(events)])
    monkeypatch.setattr(memory, "_told", [0])
    assert memory.kills() is None
    events.write_text("low 0\noom 4\noom_kill 5\n")
    before = memory.kills()
    assert before == 5
    assert not memory.was_killed(before)
    events.write_text("low 0\noom 4\noom_kill 6\n")
    assert memory.was_killed(before)
    assert not memory.was_killed(before)
    assert not memory.was_killed(None)
