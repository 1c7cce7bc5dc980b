"""A clock for those who watch others: it counts only the time in which they could have seen something."""

from __future__ import annotations

import time
from collections.abc import Callable

_LONGEST = 0.1


class Clock:
    """Seconds that were watched.

    A machine that stood still, or had no core to spare for its supervisor, had none for its workers either: what the
    watcher slept through is nobody's silence. So limits adapt to the pace of the machine.

    Args:
        longest: seconds that count of the time between two looks, at most.
        source: of seconds.

    Example:
        >>> clock = Clock(0.1, iter([5.0, 5.05, 9.0]).__next__)
        >>> round(clock.look(), 2), round(clock.look(), 2)
        (0.05, 0.15)
    """

    def __init__(self, longest: float = _LONGEST, source: Callable[[], float] = time.monotonic) -> None:
        self._longest, self._source = longest, source
        self._last = source()
        self.now = 0.0

    def look(self) -> float:
        """The time by this clock, from now on ``now``; call often."""
        now = self._source()
        self.now += min(now - self._last, self._longest)
        self._last = now
        return self.now
