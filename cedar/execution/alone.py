"""Alone: one thread for a moment, where several may do no more than pass the GIL to and fro.

Code that lets go of the GIL for a microsecond here and there (a small read, a small array) spends more on getting it
back than it gains. No figure of one call shows that; what one thread does in the place of several does.
"""

from __future__ import annotations

from cedar.execution.known import Known
from cedar.execution.metrics import Metrics

_SECONDS = 0.25  # of each part of a trial
_TASKS = 8  # in that time, at least: what is done in large pieces passes no lock to and fro
_PARTS = 4  # such times it takes, what was begun before a part included
_FASTER = 1.1  # times as fast as before and after: less may be chance
_WORTH = 1.0  # seconds of waiting that are left: less does not pay for a slow moment


class Alone:
    """Of one loader. A trial has three parts: all threads, one, and all again, for a run may change by itself."""

    def __init__(self, known: Known, metrics: Metrics) -> None:
        self.better = False  # one thread does more than several
        self.tries = False  # a trial is under way
        self.why = ""
        self._known = known
        self._metrics = metrics
        self._done = False
        self._threads = 0
        self._speeds: list[float] = []  # rows per second in each part
        self._first: int | None = None  # the task with which a part begins; None once it has

    def stop(self) -> int | None:
        """An iteration, or a plan, ended: how many threads there are to be again, where a trial was under way."""
        if not self.tries:
            return None
        self.tries = False
        return self._threads

    def due(self) -> bool:
        """Threads hold each other up, for all that is known."""
        known, metrics = self._known, self._metrics
        return (
            not self._done
            and known.takes_turns
            and known.pace.seconds >= _SECONDS
            and metrics.tasks * _SECONDS >= _TASKS * metrics.elapsed
            and known.rest() >= _WORTH
            and self._in_time()
        )

    def _in_time(self) -> bool:
        """The trial ends before the iteration does."""
        rows = self._known.remaining()
        return rows is None or rows >= _PARTS * _SECONDS * self._known.pace.rate

    def begin(self) -> None:
        """The first part: all threads, from now on."""
        self.tries, self._threads, self._speeds, self._first = True, self._known.workers, [], None
        self._known.pace.renew()

    def step(self, in_flight: int) -> int | None:
        """How many threads there are to be from now on; None as long as a part of the trial goes on.

        Args:
            in_flight: tasks that were begun; they do not count for the next part.
        """
        pace = self._known.pace
        if self._first is not None and self._metrics.tasks >= self._first:
            self._first = None
            pace.renew()
        if self._first is not None or pace.seconds < _SECONDS:
            return None
        self._speeds.append(pace.rate)
        self._first = self._metrics.tasks + in_flight
        if len(self._speeds) == 1:
            return 1
        if self._speeds[1] < _FASTER * self._speeds[-1 if len(self._speeds) > 2 else 0]:
            self.tries, self._done = False, True
            return self._threads
        if len(self._speeds) == 2:
            return self._threads
        self.tries, self._done, self.better = False, True, True
        before, one, after = self._speeds
        several = f"{self._threads} that share the GIL {before:,.0f} and {after:,.0f}"
        self.why = f"one thread does {one:,.0f} rows/s, {several}"
        self._known.hold_the_gil()
        return 1
