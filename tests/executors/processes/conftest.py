"""Pools of worker processes: the warm one, and one of a test's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cedar.executors import processes
from cedar.executors.processes.pool import Pool
from tests.executors.processes.watching import WORKERS


@pytest.fixture(scope="module")
def pool() -> Pool:
    return processes.warm(WORKERS)


@pytest.fixture
def one() -> Iterator[Pool]:
    pool = Pool(1)
    yield pool
    pool.shutdown()
