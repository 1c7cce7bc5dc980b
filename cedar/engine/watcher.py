"""Which tasks look closely, and when reading stops for another plan."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

CALLS = 3  # of each operator before a plan is created: the first may load a model
DETAILS = 6  # tasks of each stage that measure each operator by itself
EVERY = 64  # later, one task in so many does
_GROWING = frozenset({12, 16, 24, 32, 48})  # tasks grow, and what a call costs weighs less in larger ones
_SHARES = 2  # the task that tells first what operators that run as one take: what comes first loads things
_SEEKING = 256  # tasks of a stage after which an operator that no row reached is not waited for


class TimeUp(Exception):
    """Ends a run that is measured for a while."""


@dataclass
class Watcher:
    """Of one plan's streams.

    Args:
        details: how many tasks of each stage measure each operator by itself.
        every: one task in so many measures each operator, after those; 0 is none.
        fence: True once the windows not yet begun are for another plan.
        whole: every task measures each operator, on all its rows.
        until: by ``time.perf_counter()``, there are tasks.
        seeking: operators that were not seen enough: every task with one of them measures.
    """

    details: int = 0
    every: int = 0
    fence: bool = False
    whole: bool = False
    until: float = math.inf
    seeking: frozenset[int] = frozenset()
    _tasks: Counter[int] = field(default_factory=Counter, repr=False)  # of each stage so far
    _since: Counter[int] = field(default_factory=Counter, repr=False)  # of each stage, when it was watched again
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def closely(self, details: int) -> None:
        """From now on, so many more tasks of each stage measure each operator."""
        with self._lock:
            self.details, self._since = details, Counter({stage: n - 1 for stage, n in self._tasks.items()})

    def next(self, stage: int, together: bool = False, sought: bool = False) -> Literal["", "detail", "whole"]:
        """What the next task of a stage does next to its work.

        Args:
            together: operators run as one there, whose shares is unknown without a look.
            sought: one of them was not seen enough.

        Raises:
            TimeUp: the time for this is over; the first task of each stage always runs.
        """
        with self._lock:
            self._tasks[stage] += 1
            number = self._tasks[stage]
            new = number - self._since.get(stage, 0)
        if number > 1 and time.perf_counter() > self.until:
            raise TimeUp
        if self.whole:
            return "whole"
        if together and (number == _SHARES or number % EVERY == 0):
            return "detail"
        if 1 < new <= self.details + 1:  # the first batch is not made to wait
            return "detail"
        if sought and 1 < new <= _SEEKING:
            return "detail"
        grows = self.details > 0 and number in _GROWING  # figures of an epoch before know of large tasks
        return "detail" if self.every and (number % self.every == 0 or grows) else ""
