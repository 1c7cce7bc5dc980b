"""Clients of schedulers that end: closed before them, and quiet where one ends in the middle of a connection."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from typing import Any

import psutil
import pytest
from dask import config

import cedar
from cedar.cli import main
from cedar.cluster.dask import clients
from cedar.cluster.dask.clients import ask, check, close_clients, reached
from cedar.cluster.dask.keys import security_at
from cedar.cluster.dask.local import LocalHost
from cedar.core.packages import library
from cedar.plan.places import given, remember
from tests.waiting import eventually

pytestmark = [pytest.mark.heavy, pytest.mark.waits]

SCRIPT = """
import atexit
ended = []
atexit.register(lambda: print(*ended))
from cedar.cluster.dask import clients  # first, as a run on a given address does
from cedar.cluster.dask.local import LocalHost, local_address

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


def test_a_scheduler_that_stands_still_is_one_that_does_not_answer(host: LocalHost) -> None:
    client = reached(host.address)
    short = {"cedar.dask.connect": "1s", "cedar.dask.scheduler-silent": "1s"}
    os.kill(host.pid, signal.SIGSTOP)
    try:
        assert eventually(lambda: psutil.Process(host.pid).status() == psutil.STATUS_STOPPED)
        with config.set(short):
            with pytest.raises(cedar.WorkerError, match=r"does not answer: (timed out after 1|TimeoutError)"):
                ask(client, client.nthreads)
            with pytest.raises(cedar.WorkerError, match="no Dask scheduler answers at"):
                reached(host.address)
    finally:
        os.kill(host.pid, signal.SIGCONT)
    assert client.status == "closed"


def test_one_scheduler_that_stands_still_holds_up_no_other(host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    client, begun, go = reached(host.address), Event(), Event()
    monkeypatch.setattr(clients, "_is_answering", lambda _: begun.set() or go.wait(60))
    with ThreadPoolExecutor(1) as threads:
        asks = threads.submit(reached, host.address)
        try:
            assert begun.wait(60)
            assert clients._lock._lock.acquire(timeout=60)
            clients._lock._lock.release()
        finally:
            go.set()
        assert asks.result(60) is client


def test_clients_that_close_at_the_same_time_leave_dask_s_log_as_it_was() -> None:
    class Client:
        def close(self, timeout: float) -> None:
            both.wait(60)  # the first is still closing when the second begins
            if self is first:
                ended.wait(60)

    log = logging.getLogger("distributed.client")
    before, both, ended = log.level, Barrier(2), Event()
    first, second = Client(), Client()
    with ThreadPoolExecutor(2) as threads:
        closing = threads.submit(clients._close, first)
        threads.submit(clients._close, second).result(60)
        assert log.level > logging.CRITICAL, "the other one still closes"
        ended.set()
        closing.result(60)
    assert log.level == before


def test_a_forked_child_does_not_use_the_clients_of_its_parent(host: LocalHost) -> None:
    from distributed import Client

    with Client(host.address, set_as_default=False, security=security_at(host.address)) as client:
        remember(client)
        child = os.fork()
        if not child:
            signal.alarm(60)
            try:
                check(client, host.address)
            except cedar.PipelineError as error:
                os._exit(int("before this process was forked" not in str(error) or given(host.address) is not None))
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert given(host.address) is client


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
    assert eventually(lambda: len(tried) >= 2)  # once more, as where no answer
    close_clients()
    assert client.status == "closed"
    del client
    gc.collect()  # an error of what is collected fails the test


@pytest.mark.parametrize("known", [True, False], ids=["closed by Dask", "not closed by Dask"])
def test_a_client_that_cannot_connect_leaves_no_thread(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuses(*_: Any, **__: Any) -> Any:
        raise OSError("refused") if known else RuntimeError("refused")

    monkeypatch.setattr(clients._client_class().__base__, "_ensure_connected", refuses)
    before = set(threading.enumerate())
    with pytest.raises((cedar.WorkerError, RuntimeError), match="refused"):
        clients.connected("tcp://127.0.0.1:9")
    assert set(threading.enumerate()) <= before


def test_one_that_was_there_is_waited_for(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    gone, stop, now = cedar.WorkerError("the Dask scheduler at tls://a:1 is gone"), threading.Event(), itertools.count()

    def refused(address: str) -> None:
        raise cedar.WorkerError("no answer")

    def again(limit: float) -> object:
        return clients.client_again("tls://a:1", gone, limit, stop, lambda: float(next(now)))

    monkeypatch.setattr(clients, "client_at", refused)
    monkeypatch.setattr(stop, "wait", lambda seconds: None)
    with pytest.raises(cedar.WorkerError) as caught:
        again(100.0)
    assert caught.value is gone
    monkeypatch.setattr(clients, "_used", {"tls://a:1"})
    with pytest.raises(cedar.WorkerError, match=r"did not return within 100 s: no answer") as caught:
        again(100.0)
    assert "start it again at that address" in str(caught.value)
    assert next(now) == 101
    assert caplog.text.count("waiting up to 100 s") == 1
    stop.set()
    assert again(100.0) is None
    stop.clear()
    monkeypatch.setattr(clients, "client_at", lambda address: "client")
    assert again(100.0) == "client"


def test_without_dask_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """They were bare errors of Python."""
    library.cache_clear()
    for name in ("distributed", "distributed.comm.addressing"):
        monkeypatch.setitem(sys.modules, name, None)
    rows = cedar.from_items([{"x": 1}]).batch(1)
    calls: list[Callable[[], Any]] = [
        lambda: list(rows.loader(executor="dask")), lambda: list(rows.loader(executor="tcp://127.0.0.1:1")),
        lambda: clients.connected("tcp://127.0.0.1:1"), cedar.Service, lambda: cedar.Service.at("tcp://127.0.0.1:1"),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(cedar.PipelineError, match="needs distributed, which cannot be imported") as raised:
            call()
        assert raised.value.fix == "pip install 'cedar-data[dask]'"
    assert main(["service", "start"]) == 1
    assert "a preprocessing service needs distributed" in capsys.readouterr().err
    library.cache_clear()
