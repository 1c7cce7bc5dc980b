"""A clock that a test moves, and where processes can be looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

LINUX = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="processes are inspected in /proc")


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now
