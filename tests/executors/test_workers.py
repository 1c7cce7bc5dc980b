"""Workers: what functions fork, start, log and change in them."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cedar.executors.processes.pool import Pool, WorkerDied


@pytest.fixture
def one() -> Iterator[Pool]:
    pool = Pool(1)
    yield pool
    pool.shutdown()


def begins_a_program() -> None:
    os.system("sleep 600 >/dev/null 2>&1 & echo $! > child")


def forks() -> None:
    child = os.fork()
    if not child:
        time.sleep(600)
    Path("child").write_text(str(child))


@pytest.mark.parametrize("begin", [begins_a_program, forks])
def test_a_death_is_seen_while_what_the_function_began_lives(
    begin: Any, one: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one.submit(begin).result()
    try:
        with pytest.raises(WorkerDied, match="killed by SIGKILL"):
            one.submit(signal.raise_signal, signal.SIGKILL).result(60)
    finally:
        os.kill(int(Path("child").read_text()), signal.SIGKILL)


def test_a_forked_child_that_returns_gives_no_answer(one: Pool) -> None:
    def both() -> bool:
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        else:
            logging.getLogger("cedar.child").error("nobody's")
        return bool(child)

    assert [one.submit(both).result(60), one.submit(abs, -2).result(60)] == [True, 2]


def test_a_function_that_goes_elsewhere_leaves_the_next_one_where_it_was(one: Pool, tmp_path: Path) -> None:
    one.submit(os.chdir, tmp_path).result()
    assert one.submit(os.getcwd).result() == os.getcwd()
