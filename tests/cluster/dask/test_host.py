"""The process that holds a cluster of this machine."""

from types import SimpleNamespace
from typing import ClassVar

import pytest

from cedar.cluster.dask import host

pytestmark = [pytest.mark.heavy, pytest.mark.waits]


def test_workers_whose_nannies_gave_up_are_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cluster:
        status = SimpleNamespace(name="running")
        workers: ClassVar[dict[int, None]] = {0: None}  # of two

        def scale(self, n: int) -> None:
            self.workers.update(dict.fromkeys(range(n)))
            self.status = SimpleNamespace(name="closing")

    monkeypatch.setattr(host, "_CHECK_SECONDS", 0.01)
    cluster = Cluster()
    host._restore(cluster, 2)
    assert sorted(cluster.workers) == [0, 1]
