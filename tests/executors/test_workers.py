"""Workers: what functions fork, start, log and change in them."""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cedar.executors.processes import forkserver, process
from cedar.executors.processes.pool import Pool
from cedar.executors.processes.process import WorkerDied
from cedar.executors.worker import arena
from cedar.executors.worker.main import _Handler
from cedar.executors.worker.wire import Wire, decode, encode


@pytest.fixture
def one() -> Iterator[Pool]:
    pool = Pool(1)
    yield pool
    pool.shutdown()


@pytest.fixture
def wires() -> Iterator[tuple[Wire, Wire]]:
    here, there = (Wire(end) for end in socket.socketpair())
    yield here, there
    here.close()
    there.close()


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


def test_no_process_is_forked_while_a_worker_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[bool] = []

    def refuses(*_: Any, **__: Any) -> Any:
        held.append(arena.forking.locked())
        raise OSError("no more processes")

    monkeypatch.setattr(forkserver.ForkServer, "fork", refuses)
    with pytest.raises(OSError, match="no more processes"):
        process.WorkerProcess()
    assert held == [True]
    assert not arena.forking.locked()


def test_a_line_logged_while_a_message_is_sent_follows_it(
    wires: tuple[Wire, Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = wires
    handler, heed = _Handler(here), here._heed

    def finalizes() -> None:  # as objects may, whenever memory is tidied up
        handler.handle(logging.makeLogRecord({"msg": "late"}))
        heed()

    monkeypatch.setattr(here, "_heed", finalizes)
    here.send(encode("message"))
    monkeypatch.undo()
    handler.pass_on()
    assert decode(there.receive()) == "message"
    assert decode(there.receive()).record.getMessage() == "late"


def test_a_function_that_goes_elsewhere_leaves_the_next_one_where_it_was(one: Pool, tmp_path: Path) -> None:
    one.submit(os.chdir, tmp_path).result()
    assert one.submit(os.getcwd).result() == os.getcwd()
