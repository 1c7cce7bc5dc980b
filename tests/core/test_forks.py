"""Forks: locks that a process has again, and functions that a fresh process calls where polars was lost."""

from __future__ import annotations

import copy
import os
import pickle
import threading
from typing import Any

import pyarrow as pa
import pytest

from cedar.core import forks


def free(lock: forks.Lock) -> bool:
    """Whether another thread can take it."""
    got: list[bool] = []

    def take() -> None:
        got.append(lock._lock.acquire(blocking=False))
        if got[0]:
            lock._lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return got[0]


def test_a_lock_is_taken_again_by_who_has_it_and_by_nobody_else() -> None:
    lock = forks.Lock()
    with lock, lock:
        assert not free(lock)
        for other in (pickle.loads(pickle.dumps(lock)), copy.copy(lock)):
            assert free(other), "a copy is not a worker's"
    assert free(lock)


def test_a_lock_that_is_renewed_is_free_whoever_held_it() -> None:
    lock = forks.Lock()
    lock.__enter__()
    assert not free(lock)
    lock.renew()
    assert free(lock)


def test_a_process_that_lost_polars_has_it_done_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []

    def fresh(fn: Any, *args: Any) -> str:
        sent.append((fn.__name__, args))
        return "in_fresh_process_after_fork"

    @forks.in_fresh_process_after_fork
    def double(x: int) -> int:
        return 2 * x

    monkeypatch.setattr(forks, "_fresh_process_calls", [])
    forks.by(fresh)
    assert (forks.lost(), double(3), sent) == (False, 6, [])
    monkeypatch.setattr(forks, "_polars_lost", True)
    assert (forks.lost(), double(3), sent) == (True, "in_fresh_process_after_fork", [("double", (3,))])


def forked_pool() -> str:
    """The allocator of Arrow in a process forked now."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, pa.default_memory_pool().backend_name.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as name:
        return name.read()


def test_arrow_allocates_with_malloc_after_a_fork_beside_other_threads() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)  # mimalloc's lock could be this thread's at the fork
    thread.start()
    try:
        assert forked_pool() == "system"
    finally:
        end.set()
        thread.join()


def test_arrow_keeps_its_allocator_after_a_fork_without_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    assert forked_pool() == pa.default_memory_pool().backend_name
