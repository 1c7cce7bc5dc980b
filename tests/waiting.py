"""Wait for a state instead of a time, however busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

LIMIT = 240.0  # seconds; below the limit of a test, so that the test says what did not come


def eventually(true: Callable[[], Any]) -> bool:
    """Polls until the call gives something true; False after ``LIMIT``."""
    deadline = time.monotonic() + LIMIT
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
