"""A loop that waits for a task sees that it was cancelled, though no executor has looked at it."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from cedar.executors.recovery.patience import Patience
from cedar.executors.recovery.waiting import Waiting


@pytest.mark.parametrize("others", [0, 2])
def test_a_cancelled_task_ends_the_wait(others: int) -> None:
    futures: list[Future[Any]] = [Future() for _ in range(1 + others)]
    waiting = Waiting(Patience(timeout=10, look=0.05), lambda: 0, list, lambda: False)
    timer = threading.Timer(0.1, futures[0].cancel)
    timer.start()
    waiting.wait(futures, "a task")
    timer.join()
    assert futures[0].cancelled()
