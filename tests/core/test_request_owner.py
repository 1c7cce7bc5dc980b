"""On whose behalf storage is asked: what counts it, and what ends its waits."""

from __future__ import annotations

import threading
import time

from cedar.core.errors import SourceError
from cedar.core.request_owner import OwnedRequests, Stop, Use
from cedar.core.requests import RequestPatience, RequestStats
from cedar.testing.storage import StorageFault
from tests.datasets.failing_storage import failing


def test_retry_after_is_waited_out():
    account = RequestStats(RequestPatience(first=0.0))
    use = Use()
    with OwnedRequests(use):
        account.ask("x", failing(1, StorageFault(429, wait=0.05)))
    assert use.waited >= 0.05


def test_a_wait_ends_with_the_run():
    account, stop = RequestStats(RequestPatience(first=1000, most=1000, seconds=10_000)), Stop()
    caught: list[Exception] = []

    def ask() -> None:
        with OwnedRequests(stop=stop):
            try:
                account.ask("x", failing(99, StorageFault(503)))
            except SourceError as error:
                caught.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    while account.metadata.requests < 1:
        time.sleep(0.001)
    stop.set()
    thread.join(30)
    assert "the loader was closed" in str(caught[0])
