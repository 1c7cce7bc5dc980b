"""Clients of schedulers that end: closed before them, and quiet where one ends in the middle of a connection."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from cedar.executors.dask.clients import close_clients, reached
from cedar.executors.dask.local import LocalHost

SCRIPT = """
import atexit
ended = []
atexit.register(lambda: print(*ended))
from cedar.executors.dask import clients  # first, as a run on a given address does
from cedar.executors.dask.local import LocalHost, local_address

clients.reached(local_address(1))
close, end = clients._close, LocalHost.close
clients._close = lambda client: (ended.append("client"), close(client))
LocalHost.close = lambda host: (ended.append("scheduler"), end(host))
"""


@pytest.fixture
def host() -> Iterator[LocalHost]:
    host = LocalHost({"workers": 0, "dashboard": None})
    yield host
    host.close()


def test_a_client_is_closed_before_the_scheduler_that_was_made_for_it(host: LocalHost) -> None:
    client = reached(host.address)
    host.close()
    assert client.status == "closed"


def test_a_program_ends_its_clients_first() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("client scheduler\n", "")


def test_a_scheduler_that_ends_before_the_handshake_leaves_nothing_to_be_collected(
    host: LocalHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributed import client as dask_client

    tried = []

    async def too_late(*_: Any, **__: Any) -> Any:
        tried.append(1)
        raise ValueError("IOStream is not idle; cannot convert to SSL")

    client = reached(host.address)
    monkeypatch.setattr(dask_client, "connect", too_late)
    os.kill(host.pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while len(tried) < 2 and time.monotonic() < deadline:  # once more, as where nobody answers
        time.sleep(0.02)
    assert len(tried) >= 2
    close_clients()
    assert client.status == "closed"
    del client
    gc.collect()  # an error of what is collected fails the test
