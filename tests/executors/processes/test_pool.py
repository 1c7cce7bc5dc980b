"""Pools: what comes back of the calls that are submitted, also where workers die or are ended."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import cedar
from cedar.executors.processes import forkserver
from cedar.executors.processes.pool import Pool, WorkerDied, WorkerProcess
from cedar.executors.worker import arena
from cedar.tasks.code import Code
from tests.executors.processes.watching import gone
from tests.waiting import eventually


def test_whatever_is_raised_comes_through(pool: Pool) -> None:
    def raises() -> None:
        raise KeyError("name")

    with pytest.raises(KeyError, match="name") as caught:
        pool.submit(raises).result()
    assert "in raises" in "".join(caught.value.__notes__)
    with pytest.raises(SystemExit):
        pool.submit(sys.exit, 3).result()
    assert pool.submit(abs, -1).result() == 1


def test_a_death_fails_its_task_alone(one: Pool) -> None:
    one.submit(int).result()
    dying = one.submit(os._exit, 3)
    after = [one.submit(abs, -i) for i in range(5)]
    with pytest.raises(WorkerDied, match="exit code 3"):
        dying.result()
    assert [f.result() for f in after] == list(range(5))


def test_a_worker_that_died_while_it_had_no_work_is_not_ready() -> None:
    pool = Pool(1)
    try:
        pid = pool.submit(os.getpid).result()
        assert pool.ready() == 1
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: pool.ready() == 0)
        assert pool.submit(abs, -1).result() == 1
    finally:
        pool.shutdown()


def test_shutting_down_ends_the_workers_at_once() -> None:
    pool = Pool(1)
    pid = pool.submit(os.getpid).result()
    busy = pool.submit(time.sleep, 600)
    waiting = [pool.submit(int) for _ in range(3)]
    assert eventually(busy.running)
    pool.shutdown()
    assert isinstance(busy.exception(), WorkerDied)
    assert all(f.cancelled() or isinstance(f.exception(), WorkerDied) for f in waiting)
    assert gone(pid)
    with pytest.raises(RuntimeError):
        pool.submit(int)


def test_a_worker_s_log_is_the_parent_s(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    def says(word: str) -> None:
        logging.getLogger("cedar.test").warning("heard %s", word)

    pool.submit(says, "it").result()
    assert "heard it" in caplog.messages


class Odd(Exception):
    """It can be pickled, and not be rebuilt."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(a)


@pytest.mark.parametrize("odd", [lambda: Odd(1, 2), lambda: threading.Lock()], ids=["not made here", "not sent"])
def test_a_line_that_does_not_arrive_whole_is_no_answer(
    odd: Callable[[], object], one: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    def says(number: int) -> int:
        logging.getLogger("cedar.test").warning("heard %d", number, extra={"cause": odd()})
        return number

    assert [future.result(60) for future in [one.submit(says, i) for i in range(20)]] == list(range(20))
    assert {f"heard {i}" for i in range(20)} <= set(caplog.messages)


def test_a_handler_that_fails_ends_no_worker(one: Pool, caplog: pytest.LogCaptureFixture) -> None:
    class Fails(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise KeyError(record.name)

    def says(number: int) -> int:
        logging.getLogger("test.fails").warning("heard %d", number)
        return os.getpid()

    log, handler = logging.getLogger("test.fails"), Fails()
    log.addHandler(handler)
    try:
        assert len({one.submit(says, i).result(60) for i in range(5)}) == 1
    finally:
        log.removeHandler(handler)
    assert sum("a logging handler or filter failed" in message for message in caplog.messages) <= 1


def test_what_cannot_be_pickled_is_said(pool: Pool) -> None:
    with pytest.raises(cedar.WorkerError, match="cannot be sent"):
        pool.submit(id, threading.Lock()).result()
    with pytest.raises(cedar.WorkerError, match="cannot be sent"):
        pool.submit(threading.Lock).result()
    assert pool.submit(abs, -1).result() == 1


def test_code_is_sent_once_to_a_worker(one: Pool) -> None:
    code = Code.of((bytes(1 << 20),))

    def size(code: Code) -> int:
        return len(code.load()[0])

    keeper = one._keepers[0]
    sizes = []
    for _ in range(3):
        assert one.submit(size, code).result() == 1 << 20
        assert keeper.worker is not None
        sizes.append(code.key in keeper.worker.known)
    assert sizes == [True] * 3
    for number in range(40):  # the worker forgets the first, and asks for it again
        assert one.submit(size, Code.of((b"x" * number,))).result() == number
    assert one.submit(size, code).result() == 1 << 20


def test_a_worker_that_dies_idle_is_replaced_without_a_word(one: Pool) -> None:
    pid = one.submit(os.getpid).result()
    worker = one._keepers[0].worker
    assert worker is not None
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not worker.alive)
    assert one.submit(os.getpid).result() != pid


def test_no_process_is_forked_while_a_worker_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[bool] = []

    def refuses(*_: Any, **__: Any) -> Any:
        held.append(arena.fork_lock.locked())
        raise OSError("no more processes")

    monkeypatch.setattr(forkserver.ForkServer, "fork", refuses)
    with pytest.raises(OSError, match="no more processes"):
        WorkerProcess()
    assert held == [True]
    assert not arena.fork_lock.locked()


def test_an_exit_code_that_another_thread_has_received_stays_known() -> None:
    worker = object.__new__(WorkerProcess)

    class OtherThreadIsFaster:
        def exit_code_of(self, _pid: int, _seconds: float) -> int | None:
            worker._exit_code = 3
            return None

    worker.pid, worker._exit_code, worker._server = 1, None, OtherThreadIsFaster()  # type: ignore[assignment]
    assert not worker.alive
    assert worker._exit_code == 3
