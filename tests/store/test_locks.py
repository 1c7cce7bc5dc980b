"""Locks: one is inside at a time, a process that is killed lets go, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cedar.store.locks import acquire, alone, release

HOLD = """
import sys, time
from cedar.store.locks import alone
with alone(sys.argv[1]):
    print("inside", flush=True)
    time.sleep(100)
"""


def test_one_is_inside_at_a_time(tmp_path: Path) -> None:
    inside: list[int] = []
    most = []

    def work(number: int) -> None:
        with alone(str(tmp_path / "a")):
            inside.append(number)
            most.append(len(inside))
            threading.Event().wait(0.001)
            inside.remove(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 12
    assert os.listdir(tmp_path) == []


def test_one_path_does_not_wait_for_another(tmp_path: Path) -> None:
    with alone(str(tmp_path / "a")), alone(str(tmp_path / "b")):
        assert len(os.listdir(tmp_path)) == 2


def test_a_killed_process_lets_go(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"inside\n"
        with pytest.raises(BlockingIOError):
            acquire(str(tmp_path / ".a.lock"))
        holder.send_signal(signal.SIGKILL)
        with alone(path):
            pass
    assert os.listdir(tmp_path) == []


def test_where_no_file_can_be_written_nobody_waits(tmp_path: Path) -> None:
    with alone(str(tmp_path / "none" / "a")), alone(str(tmp_path / "none" / "a")):
        pass


def test_a_handle_that_a_forked_process_has_does_not_hold_the_lock(tmp_path: Path) -> None:
    handle = acquire(str(tmp_path / "lock"))
    assert handle is not None
    other = os.dup(handle)  # as a fork has it
    release(handle)
    again = acquire(str(tmp_path / "lock"))
    assert again is not None
    release(again)
    os.close(other)
