"""Patience: for how long things stand still, and what of a process is taken for stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import cedar
import cedar.testing
from cedar.executors import processes
from cedar.executors.recovery import patience as patiences
from cedar.executors.recovery.patience import Patience, Pulse, StallTimer, pulse, why_stopped
from tests.executors.recovery.clock import LINUX, Clock
from tests.waiting import eventually


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
