"""What it costs to work on a cluster is measured once for each."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from cedar.cluster.dask import costs
from cedar.cluster.dask.executor import DaskExecutor
from cedar.executors.choose import DoneFuture

pytestmark = [pytest.mark.heavy, pytest.mark.waits]


class Near(DaskExecutor):
    """A cluster that is this process."""

    def __init__(self, address: str) -> None:
        self.address, self.sent, self.shut = address, 0, False
        self.watch: Any = SimpleNamespace(threads=3)

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.sent += 1
        return DoneFuture(fn(*args, **kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.shut = True


def test_a_cluster_is_measured_once_and_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Near] = []
    monkeypatch.setattr(costs, "open_cluster", lambda where, _: opened.append(Near(where)) or opened[-1])
    monkeypatch.setattr(costs, "_known", {})
    first, again, other = (costs.ship_costs(where) for where in ("tcp://a:1", "tcp://a:1", "tcp://b:1"))
    assert first == again
    address, threads, task, rate = first
    assert (address, threads, other[0]) == ("tcp://a:1", 3, "tcp://b:1")
    assert task > 0
    assert rate > 0
    assert [each.sent > 100 for each in opened] == [True, False, True]
    assert opened[1].sent == 0
    assert all(each.shut for each in opened)
