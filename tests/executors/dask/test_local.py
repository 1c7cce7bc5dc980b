"""Clusters on this machine: started, or said not to start."""

from __future__ import annotations

import pytest

import cedar
from cedar.executors.dask import local
from cedar.executors.dask.local import LocalHost


def test_a_cluster_that_ends_as_it_starts_or_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(cedar.WorkerError, match="it ended with exit code 1"):
        LocalHost({"workers": 0, "dashboard": None}, "no_such_module")
    monkeypatch.setattr(local, "_PATIENCE", 0.01)
    with pytest.raises(cedar.WorkerError, match=r"it did not start within 0\.01 s"):
        LocalHost({"workers": 0, "dashboard": None})
