"""The board: what a process leaves behind of where it was."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.executors.recovery.board import AttemptBoard
from cedar.operators.marks import BadRow, Mark, Marks, SlotReading
from tests.toy_blocks import block

INT = st.integers(-(2**62), 2**62)


@pytest.fixture(scope="module")
def board() -> AttemptBoard:
    return AttemptBoard()


def seen(board: AttemptBoard, marks: Marks) -> SlotReading:
    found = board.read(marks.place)
    assert found is not None
    return found


def marks_on(board: AttemptBoard, **known: Any) -> Marks:
    place = board.take()
    assert place is not None
    return Marks(place, **known)


def test_what_is_written_is_read(board: AttemptBoard) -> None:
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


def test_only_what_needs_it_is_marked_by_the_row(board: AttemptBoard) -> None:
    marks = marks_on(board)
    marks.enter(4, block(x=[1, 2]), True)
    assert marks.guard(abs, 2, None) is abs
    assert marks.guard(abs, 2, 1.0) is not abs
    assert not marks.watched  # by another process


def test_bad_rows_are_not_called(board: AttemptBoard) -> None:
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
    board = AttemptBoard()
    marks = marks_on(board)
    marks._set(Mark(operator, rows, key))
    assert seen(board, marks).mark == Mark(operator, rows, key)
    at = marks.place.number * 128
    board._page[at] ^= 1  # the number at its beginning is that of the next one
    assert board.read(marks.place) is None
    os.close(board._fd)


def test_a_slot_is_empty_when_it_is_taken_again() -> None:
    board = AttemptBoard()
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


def test_another_process_writes_where_this_one_reads(board: AttemptBoard) -> None:
    marks = marks_on(board, fine=True)
    code = "import pickle, sys; m = pickle.load(sys.stdin.buffer); assert m.watched; m.reading(3, 2, 7)"
    subprocess.run([sys.executable, "-c", code], input=pickle.dumps(marks), check=True, timeout=60)
    assert seen(board, marks).mark.key[:3] == (3, 2, 7)
    assert seen(board, marks).pid != os.getpid()


def test_a_page_that_is_not_there_or_another_s_is_left_alone(board: AttemptBoard, tmp_path: Path) -> None:
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
