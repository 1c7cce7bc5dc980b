"""Waiting: who waits for what, until when, and what ends it."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
import cedar.testing
from cedar.executors import processes
from cedar.executors.processes.pool import Pool
from cedar.executors.recovery import recovery as recovering
from cedar.executors.recovery import waiting as patiences
from cedar.executors.recovery.recovery import Recovery
from cedar.executors.recovery.task import Deaths, TaskWork
from cedar.executors.recovery.waiting import (
    AttemptBoard,
    Patience,
    Pulse,
    RunningTask,
    StallTimer,
    Waiting,
    WorkerWatch,
    pulse,
    why_stopped,
)
from cedar.operators.marks import BadRow, Mark, Marks, SlotReading
from cedar.tasks.chain import Program
from tests.executors.recovery.clock import LINUX, Clock
from tests.toy_blocks import block
from tests.waiting import eventually


class Waits:
    """A wait for what never comes, by a clock that each look moves by a second."""

    def __init__(self, timeout: float | None, ends: bool = False) -> None:
        self.clock, self.moves, self.looks = Clock(), True, 0
        self.waiting = Waiting(Patience(timeout, clock=self.clock), self._progress, self._at_work, lambda: ends)
        self.still = StallTimer(self.clock, 1.0)

    def _progress(self) -> object:
        return self.looks if self.moves else 0

    def _at_work(self) -> list[RunningTask]:
        row = cedar.core.errors.RowRef(0, 0, 5, url="a.parquet")
        return [RunningTask("map(f)", "process 123", time.monotonic() - 31, row)]

    def seconds(self, count: int) -> None:
        for _ in range(count):
            self.looks += 1
            self.clock.now += 1
            self.waiting.look(self.still, "map(f) -> map(g)")


def test_one_warning_says_who_waits_for_what_since_when(caplog: pytest.LogCaptureFixture) -> None:
    waits = Waits(None)
    waits.seconds(1000)
    assert not caplog.records  # slow, and make progress
    waits.moves = False
    waits.seconds(1000)
    (record,) = caplog.records
    said = record.getMessage()
    assert said.startswith("no progress for 30 s, since ")
    assert "the loop waits for map(f) -> map(g); at work: map(f), a.parquet, row 5 (process 123, for 31 s)" in said


@pytest.mark.parametrize(("ends", "limit"), [(False, 5), (True, 20)])
def test_a_wait_has_an_end_where_there_is_a_limit(ends: bool, limit: int) -> None:
    waits = Waits(5.0, ends)
    waits.seconds(100)
    waits.moves = False
    waits.seconds(limit)
    with pytest.raises(
        cedar.WorkerError, match=f"no progress for {limit} s, since .* at work: map.f., a.parquet, row 5"
    ):
        waits.seconds(1)


def test_a_result_that_is_there_is_not_waited_for() -> None:
    done: Future[int] = Future()
    done.set_result(1)
    Waits(5.0).waiting.wait([done], "map(f)")


@pytest.mark.parametrize("others", [0, 2])
def test_a_cancelled_task_ends_the_wait(others: int) -> None:
    futures: list[Future[Any]] = [Future() for _ in range(1 + others)]
    waiting = Waiting(Patience(timeout=10, look=0.05), lambda: 0, list, lambda: False)
    timer = threading.Timer(0.1, futures[0].cancel)
    timer.start()
    waiting.wait(futures, "a task")
    timer.join()
    assert futures[0].cancelled()


def test_time_in_which_nobody_looked_does_not_count() -> None:
    clock = Clock()
    still = StallTimer(clock, 1.0)
    found = []
    for now, state in [(1, "a"), (2, "a"), (3, "a"), (1000, "a"), (1001, "b"), (1002, "b")]:
        clock.now = now
        found.append(still.look({"one": state})["one"])
    assert found == [0, 1, 2, 4, 0, 1]  # the one who looks was stopped itself for a quarter of an hour
    assert still.look({}) == {}
    assert still.look({"one": "b"}) == {"one": 0}


@pytest.mark.parametrize(
    ("state", "seconds", "beats", "stopped"),
    [
        ("T", 3, False, True), ("T", 1, True, False), ("t", 1000, True, False), ("S", 20, True, True),
        ("S", 1000, False, False), ("D", 20, True, True), ("R", 1000, True, False), ("Z", 1000, True, False),
    ],
)  # fmt: skip
def test_what_is_taken_for_stopped(state: str, seconds: float, beats: bool, stopped: bool) -> None:
    assert bool(why_stopped(Pulse(state, 7), seconds, Patience(), beats)) == stopped


@LINUX
def test_a_worker_beats_whatever_it_does() -> None:
    pool = processes.warm(1)
    pid = pool.submit(os.getpid).result()
    assert pid in [member.pid for member in pool.members()]
    hangs = pool.submit(cedar.testing.hang, "lock")  # holds Python's lock, and sleeps
    try:
        before = pulse(pid)
        assert before is not None
        assert eventually(lambda: (now := pulse(pid)) is not None and now.turns != before.turns)
    finally:
        os.kill(pid, signal.SIGKILL)
        assert hangs.exception() is not None


@LINUX
def test_a_name_that_was_cut_within_a_letter_is_no_error() -> None:
    code = "import ctypes; ctypes.CDLL(None).prctl(15, 'x読み込みプロセス'.encode(), 0, 0, 0); print(); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = pulse(process.pid)
        process.kill()
    assert found is not None
    assert found.state in "RSD"


def test_who_cannot_be_seen_is_not_looked_for() -> None:
    assert pulse(2**30) is None
    assert patiences.pulse(os.getpid()) is None or Path("/proc/self/task").is_dir()


def test_a_member_that_is_frozen_is_ended_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    class Member:
        pid, why = 4_000_000, ""

        def kill(self, why: str = "") -> None:
            self.why = why

    clock, member, turns = Clock(), Member(), iter([1, 2, 3, 3, 3, 3])
    monkeypatch.setattr("cedar.executors.recovery.waiting.pulse", lambda pid: Pulse("S", next(turns)))
    watch = WorkerWatch(Patience(frozen=3.0, clock=clock))
    for now in range(6):
        assert not member.why
        clock.now = now
        watch.look([member], [])  # type: ignore[list-item]
    assert member.why == "frozen: none of its threads ran for 3 s"


def test_a_row_that_ends_just_in_time_spares_its_worker_and_not_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def at(row: int, limit: float) -> SlotReading:
        return SlotReading(Mark(0, 1, (0, 0, row, -1, 0, 0)), pid, began=0.0, limit=limit)

    pool = Pool(1)
    pid = pool.submit(os.getpid).result()
    # The first row is over its time, and then the second one is at hand; the third one hangs.
    looks = iter([at(1, 1e-9), at(2, 1e9), at(3, 1e-9), at(3, 1e-9)])
    board = AttemptBoard()
    monkeypatch.setattr(board, "read", lambda _: next(looks))
    monkeypatch.setattr(recovering, "process_board", lambda: board)
    monkeypatch.setattr(patiences, "process_board", lambda: board)
    recovery = Recovery(lambda: pool, Deaths(), marks=True)
    monkeypatch.setattr(recovery, "_start", lambda: None)
    work = TaskWork(Program((), 0), lambda submit, _: submit(time.sleep, 600), limits=(1.0,))
    recovery.submit(work)
    (task,) = recovery._tasks
    recovery._check_workers()
    assert not task.killed
    recovery._check_workers()
    assert task.killed
    task.cancel()
    recovery.close()
    pool.shutdown()


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
