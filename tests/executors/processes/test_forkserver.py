"""The server that forks workers: they are as fresh as new interpreters; it is started again where need be, and ends."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cedar.executors.processes import forkserver
from cedar.executors.processes.pool import Pool, WorkerDied, WorkerProcess
from tests.waiting import eventually


@pytest.fixture
def pool() -> Any:
    made = Pool(1)
    yield made
    made.shutdown()


def test_a_worker_that_died_is_replaced_by_the_same_server(pool: Pool) -> None:
    first, server = pool.submit(os.getpid).result(), pool.submit(os.getppid).result()
    with pytest.raises(WorkerDied, match="exit code 7"):
        pool.submit(os._exit, 7).result()
    with pytest.raises(WorkerDied, match="killed by SIGKILL"):
        pool.submit(os.kill, pool.submit(os.getpid).result(), signal.SIGKILL).result()
    assert pool.submit(os.getpid).result() != first
    assert pool.submit(os.getppid).result() == server != os.getpid()


def test_each_worker_draws_its_own_numbers(pool: Pool) -> None:
    """A fork shares its parent's generators: those of a new interpreter do not."""

    def draws() -> tuple[float, float]:
        return random.random(), float(np.random.random())  # noqa: NPY002 - the generator that all share

    with_first = pool.submit(draws).result()
    with pytest.raises(WorkerDied):
        pool.submit(os._exit, 1).result()
    assert not {*with_first} & {*pool.submit(draws).result()}


def test_nothing_of_a_worker_is_in_the_next_one(pool: Pool) -> None:
    def leaves() -> bool:
        seen = hasattr(sys, "_left") or "polars" in sys.modules or len(os.listdir("/proc/self/task")) > 4
        sys._left = __import__("polars")  # type: ignore[attr-defined]
        return seen

    assert pool.submit(leaves).result() is False
    assert pool.submit(leaves).result() is True
    with pytest.raises(WorkerDied):
        pool.submit(os._exit, 1).result()
    assert pool.submit(leaves).result() is False


def test_what_workers_inherit_is_that_of_the_moment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Environment, search path and limits, as libraries read them when they are imported."""

    def describe() -> tuple[str | None, bool]:
        return os.environ.get("TOLD"), str(tmp_path) in sys.path

    one = Pool(1)
    server = one.submit(os.getppid).result()
    assert one.submit(describe).result() == (None, False)
    monkeypatch.setenv("TOLD", "yes")
    monkeypatch.syspath_prepend(tmp_path)
    two = Pool(1)
    assert two.submit(describe).result() == ("yes", True)
    assert two.submit(os.getppid).result() != server
    assert one.submit(describe).result() == (None, False)
    one.shutdown()
    two.shutdown()


def test_entries_of_the_search_path_that_python_ignores_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/nowhere")])
    pool = Pool(1)
    assert pool.submit(abs, -1).result() == 1
    pool.shutdown()


def test_workers_have_the_options_of_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "_args_from_interpreter_flags", lambda: ["-O"])

    def optimized() -> int:
        return sys.flags.optimize

    pool = Pool(1)
    assert pool.submit(optimized).result() == 1
    pool.shutdown()


def test_workers_warn_of_what_the_user_wants_to_hear_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "error::DeprecationWarning")
    pool = Pool(1)
    with pytest.raises(DeprecationWarning, match="old"):
        pool.submit(warnings.warn, "old", DeprecationWarning).result()
    pool.shutdown()


def test_a_server_that_died_takes_its_workers_along_and_is_replaced(pool: Pool, tmp_path: Path) -> None:
    def waits() -> None:
        (tmp_path / "begun").touch()
        time.sleep(600)

    server, worker = pool.submit(os.getppid).result(), pool.submit(os.getpid).result()
    task = pool.submit(waits)
    assert eventually((tmp_path / "begun").exists)
    os.kill(server, signal.SIGKILL)
    with pytest.raises(WorkerDied, match="killed by SIGKILL"):
        task.result(60)
    assert pool.submit(os.getppid).result(60) != server
    assert eventually(lambda: not Path(f"/proc/{worker}").exists())


def test_a_server_that_does_not_answer_costs_no_more_than_its_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    WorkerProcess().end()
    server = forkserver.server()
    os.kill(server._process.pid, signal.SIGSTOP)
    monkeypatch.setattr(forkserver, "_START_SECONDS", 0.2)
    with pytest.raises(OSError, match="did not answer within 0.2 s"):
        WorkerProcess()
    monkeypatch.undo()
    worker = WorkerProcess()  # of another one: the first would answer late
    assert forkserver.server() is not server
    assert worker.alive
    worker.kill()
    worker.end()


def test_no_process_outlives_the_end_of_the_server() -> None:
    worker = WorkerProcess()
    server = forkserver.server()
    forkserver.close()
    assert not server.alive
    assert eventually(lambda: not Path(f"/proc/{worker.pid}").exists())
    assert worker.end() == "killed by SIGKILL"


ORPHANS = """
import os, time
from cedar.executors.processes.pool import Pool
pool = Pool(1)
print(*pool.submit(lambda: (os.getpid(), os.getppid())).result(), flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="looks for processes in /proc")
def test_server_and_workers_end_with_a_program_that_is_killed() -> None:
    parent: Any = subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True)
    try:
        pids = parent.stdout.readline().split()
        assert len(pids) == 2
    finally:
        parent.kill()
        parent.communicate()
    assert eventually(lambda: not any(_alive(pid) for pid in pids))


def _alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_one_kill_for_memory_explains_one_death(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    events = tmp_path / "memory.events"
    monkeypatch.setattr(forkserver, "_count_files", lambda: [str(tmp_path / "missing"), str(events)])
    monkeypatch.setattr(forkserver, "_explained_kills", [0])
    assert forkserver.kills_for_memory() is None
    events.write_text("low 0\noom 4\noom_kill 5\n")
    before = forkserver.kills_for_memory()
    assert before == 5
    assert forkserver.ending(-9, before) == "killed by SIGKILL"
    events.write_text("low 0\noom 4\noom_kill 6\n")
    assert forkserver.ending(-9, before) == "killed by SIGKILL: out of memory, as the kernel reports"
    assert forkserver.ending(-9, before) == "killed by SIGKILL"


def test_how_a_process_ended_is_told_in_words() -> None:
    assert forkserver.ending(3, None) == "exit code 3"
    assert forkserver.ending(-11, 0) == "killed by SIGSEGV"
    assert forkserver.ending(-9, None) == "killed by SIGKILL (perhaps because memory ran out)"
    assert forkserver.ending(-1000, None) == "killed by signal 1000"
