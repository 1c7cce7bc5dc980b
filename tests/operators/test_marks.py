"""Marks: what a task writes of where it is; what others make of it is tested next to the recovery of processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cedar.core.errors import RowRef
from cedar.operators.marks import (
    READING,
    SLOT,
    TOKEN,
    BadRow,
    Mark,
    Marks,
    SlotAddress,
    SlotReading,
    WorkerKilled,
    each_key,
    making,
    reading,
)
from tests.toy_blocks import block


@pytest.fixture
def place(tmp_path: Path) -> SlotAddress:
    """A slot of a page that nothing else reads."""
    token = b"t" * TOKEN
    (tmp_path / "page").write_bytes(token + bytes(4 * SLOT - TOKEN))
    return SlotAddress(str(tmp_path / "page"), token, 2, os.getpid())


def read(marks: Marks) -> SlotReading:
    found = marks.seen()
    assert found is not None
    return found


def test_what_is_done_for_no_row_is_marked_while_it_lasts(place: SlotAddress) -> None:
    marks = Marks(place)
    assert marks.seen() is None
    marks.enter(4, block(x=[1, 2]), divisible=False)
    at = read(marks)
    with marks.aside(7):
        assert read(marks).mark == Mark(7, 0)
    assert read(marks).mark == at.mark == Mark(4, 2)
    assert at.pid == os.getpid()
    assert not at.overdue(at.began + 1e9)  # no limit was given


def test_a_row_that_is_known_to_end_the_process_is_not_made(place: SlotAddress) -> None:
    bad = BadRow(Mark(READING, 1, (3, 2, 8, -1, 0, 0)), "killed by SIGSEGV")
    marks = Marks(place, bad=(bad,))
    with reading(marks, 3, 2, 7):
        making(7)
        assert read(marks).mark == Mark(READING, 1, (3, 2, 7, -1, 0, 0))
        with pytest.raises(WorkerKilled, match="killed by SIGSEGV"):
            making(8)
    making(8)  # of another source, which has no marks


def test_marks_name_their_first_row() -> None:
    assert Mark(4, 1, (1, 2, 3, -1, 0, 0)).ref == RowRef(1, 2, 3, -1, 0, unit="row")
    assert Mark(4, 5, (1, 2, 3, -1, 0, 0)).ref.unit == "rows starting at"
    assert each_key(block(x=[7, 8]).keys) == [(0, 0, row, -1, 0, 0) for row in range(2)]
    late = SlotReading(Mark(4, 1), 1, began=100.0, limit=2.0)
    assert [late.overdue(now) for now in (101.0, 103.0)] == [False, True]
