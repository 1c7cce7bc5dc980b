"""What the tests of storage get: an empty one in memory, and short waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fsspec
import pytest

from cedar.datasets import requests
from cedar.testing.storage import FlakyFileSystem
from tests.datasets.failing_storage import QUICK


@pytest.fixture
def memory() -> Iterator[Any]:
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]
    FlakyFileSystem.clear_instance_cache()
    yield fs
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits are short, so that many faults take no time."""
    monkeypatch.setattr(requests.Patience, "of_environment", staticmethod(lambda: QUICK))
