"""Clusters on this machine: started, or said not to start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from dask import config

import cedar
from cedar.cluster import dask
from cedar.cluster.dask import clients, local
from cedar.cluster.dask.local import LocalHost

pytestmark = [pytest.mark.heavy, pytest.mark.waits]


def test_a_cluster_that_ends_as_it_starts_or_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(cedar.WorkerError, match="it ended with exit code 1"):
        LocalHost({"workers": 0, "dashboard": None}, "no_such_module")
    monkeypatch.setattr(local, "_PATIENCE", 0.01)
    with pytest.raises(cedar.WorkerError, match=r"it did not start within 0\.01 s"):
        LocalHost({"workers": 0, "dashboard": None})


def test_a_cluster_may_be_started_while_others_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    class Host:
        @property
        def address(self) -> str:
            hosts[len(hosts)] = self  # as another thread does
            return "tls://127.0.0.1:1"

    hosts: dict[int, Any] = {0: Host()}
    monkeypatch.setattr(local, "_hosts", hosts)
    assert not local.is_local("tls://127.0.0.1:2")


def test_a_cluster_that_answers_late_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    local.local_address(1)
    clients.close_clients()
    host, connected, tries = local._hosts[1], clients.connected, []

    def late(address: str) -> Any:
        tries.append(address)
        if len(tries) == 3:
            os.kill(host.pid, signal.SIGCONT)
        with config.set({"cedar.dask.connect": "60s" if len(tries) == 3 else "0.5s"}):
            return connected(address)

    monkeypatch.setattr(clients, "connected", late)
    os.kill(host.pid, signal.SIGSTOP)
    try:
        assert dask.open_cluster("dask", 1).submit(pow, 2, 3).result(60) == 8
    finally:
        os.kill(host.pid, signal.SIGCONT)
        dask.close()
    assert tries == [host.address] * 3


PRINTS = """
from cedar.cluster import dask

def prints(times):
    for number in range(times):
        print(number, "x" * 1000)
    return times

print(dask.open_cluster("dask", 1).submit(prints, 300).result(60))
"""


def test_what_a_function_prints_is_seen_and_never_holds_it_up() -> None:
    done = subprocess.run([sys.executable, "-c", PRINTS], capture_output=True, text=True, timeout=100, check=False)
    printed = [f"{number} {'x' * 1000}" for number in range(300)]  # more than a pipe holds
    assert sorted(done.stdout.splitlines()) == sorted([*printed, "300"]), done.stderr
