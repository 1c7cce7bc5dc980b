"""What runs in a worker: errors on their way back, log lines, and what functions change, fork and start."""

from __future__ import annotations

import logging
import pickle
import platform
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import cedar
from cedar.core.columns import copied
from cedar.executors import processes
from cedar.executors.worker.main import TaskFailed, _WireLogHandler
from cedar.executors.worker.wire import Wire, decode, encode

UNDER_TBLIB = """
import pickle, threading, cedar
from cedar.executors.worker.main import TaskFailed
import tblib.pickling_support
tblib.pickling_support.install()
try:
    try:
        raise OSError("no answer", threading.Lock())
    except OSError as error:
        raise cedar.SourceError("gone", fix="wait") from error
except cedar.SourceError as error:
    found = pickle.loads(pickle.dumps(TaskFailed(error))).error
print(type(found).__name__, found.what, found.fix, type(found.__cause__).__name__)
"""


def test_errors_of_ours_travel_their_own_way():
    done = subprocess.run([sys.executable, "-c", UNDER_TBLIB], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.split() == ["SourceError", "gone", "wait", "RuntimeError"], done.stderr


def test_other_errors_travel_as_they_are():
    error = pickle.loads(pickle.dumps(TaskFailed(KeyError("x")))).error
    assert isinstance(error, KeyError)
    assert error.args == ("x",)
    assert pickle.loads(pickle.dumps(TaskFailed(cedar.RowError("bad")))).error.what == "bad"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such settings")
def test_a_worker_uses_freed_memory_again_for_large_arrays():
    lease = processes.Lease(1)
    try:
        assert lease.submit(faults_of_tasks, 50).result() < 20 * _ROWS * (_BYTES // resource.getpagesize())
    finally:
        lease.shutdown()


_ROWS, _BYTES = 8, 600_000


def faults_of_tasks(number: int) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(number):
        np.stack([np.ones(_BYTES, np.uint8) for _ in range(_ROWS)])
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(sys.platform != "linux", reason="other systems use pipes")
def test_a_worker_sends_large_columns_without_a_copy():
    lease = processes.Lease(1)
    try:
        column = lease.submit(column_that_is_kept).result()
        assert (column == 1).all()
        lease.submit(change_kept_column).result()
        assert (column == 2).all(), "the same memory"
    finally:
        lease.shutdown()


def column_that_is_kept() -> Any:
    sys.__dict__["kept_column"] = copied(np.ones((_ROWS, _BYTES), np.uint8))
    return sys.__dict__["kept_column"]


def change_kept_column() -> None:
    sys.__dict__.pop("kept_column").fill(2)


@pytest.fixture
def wires() -> Iterator[tuple[Wire, Wire]]:
    here, there = (Wire(end) for end in socket.socketpair())
    yield here, there
    here.close()
    there.close()


def test_a_line_logged_while_a_message_is_sent_follows_it(
    wires: tuple[Wire, Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = wires
    handler, heed = _WireLogHandler(here), here._apply_updates

    def finalizes() -> None:  # as objects may, whenever memory is tidied up
        handler.handle(logging.makeLogRecord({"msg": "late"}))
        heed()

    monkeypatch.setattr(here, "_apply_updates", finalizes)
    here.send(encode("message"))
    monkeypatch.undo()
    handler.send_queued()
    assert decode(there.receive()) == "message"
    assert decode(there.receive()).record().getMessage() == "late"
