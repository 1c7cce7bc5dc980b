"""Alone: one thread for a moment, where several may do no more than pass the GIL to and fro.

Code that lets go of the GIL for a microsecond here and there (a small read, a small array) spends more on getting it
back than it gains. No figure of one call shows that; what one thread does in the place of several does.
"""

from __future__ import annotations

from cedar.execution.known import Known
from cedar.execution.metrics import Metrics

_SECONDS = 0.25  # for the threads to show what they do, and as long for one of them
_TASKS = 8  # in that time, at least: what is done in large pieces passes no lock to and fro
_FASTER = 1.1  # times as fast: less may be chance
_WORTH = 1.0  # seconds of waiting that are left: less does not pay for a slow moment


class Alone:
    """Of one loader; tried once."""

    def __init__(self, known: Known, metrics: Metrics) -> None:
        self._known = known
        self._metrics = metrics
        self.better = False  # one thread does more than several
        self._tried = False
        self._before: tuple[int, float] | None = None  # threads, and their rows per second
        self._first: int | None = None  # the task from which on one thread is alone; None once it is

    @property
    def tries(self) -> bool:
        """One thread is at work in the place of several."""
        return self._before is not None

    def start(self) -> None:
        """An iteration begins, with all threads."""
        self._before = None

    def due(self) -> bool:
        """Threads hold each other up, for all that is known, and have shown what they do."""
        known, metrics = self._known, self._metrics
        return (
            not self._tried
            and known.takes_turns
            and known.pace.seconds >= _SECONDS
            and metrics.tasks * _SECONDS >= _TASKS * metrics.elapsed
            and known.rest() >= _WORTH
        )

    def begin(self, in_flight: int) -> None:
        """From now on there is one thread; those before it finish what they have."""
        self._before = self._known.workers, self._known.pace.speed
        self._first = self._metrics.tasks + in_flight

    def end(self) -> tuple[int, str] | None:
        """How many threads are to go on, and why; None as long as it is not known."""
        pace = self._known.pace
        if self._first is not None and self._metrics.tasks >= self._first:
            self._first = None
            pace.renew()
        if self._before is None or self._first is not None or pace.seconds < _SECONDS:
            return None
        (threads, before), self._before, self._tried = self._before, None, True
        if pace.speed < _FASTER * before:
            return threads, ""
        self.better = True
        self._known.hold_the_gil()
        return 1, f"one thread does {pace.speed:,.0f} rows/s, {threads} that share the GIL did {before:,.0f}"
