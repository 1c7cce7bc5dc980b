"""Which tasks look closely, and when reading stops for another plan."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

CALLS = 3  # of each operator before a plan is made: the first may load a model
DETAILS = 6  # tasks of each stage that measure each operator by itself
EVERY = 64  # later, one task in so many does
_GROWING = frozenset({12, 16, 24, 32, 48})  # tasks grow, and what a call costs weighs less in larger ones
_SEEKING = 256  # tasks of a stage after which an operator that no row reached is not waited for


@dataclass
class Watcher:
    """Of one plan's streams.

    Args:
        details: how many tasks of each stage measure each operator by itself.
        every: one task in so many measures each operator, after those; 0 is none.
        fence: True once the windows not yet begun are for another plan.
        seeking: True while some operator was not seen enough: every task measures.
    """

    details: int = 0
    every: int = 0
    fence: bool = False
    seeking: bool = False
    _tasks: Counter[int] = field(default_factory=Counter, repr=False)  # of each stage so far
    _since: Counter[int] = field(default_factory=Counter, repr=False)  # of each stage, when it was watched anew
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def closely(self, details: int) -> None:
        """From now on, so many more tasks of each stage measure each operator."""
        with self._lock:
            self.details, self._since = details, Counter({stage: n - 1 for stage, n in self._tasks.items()})

    def next(self, stage: int) -> Literal["", "detail"]:
        """What the next task of a stage does beside its work."""
        with self._lock:
            self._tasks[stage] += 1
            number = self._tasks[stage]
            anew = number - self._since[stage]
        if 1 < anew <= self.details + 1:  # the first batch is not made to wait
            return "detail"
        if self.seeking and 1 < anew <= _SEEKING:
            return "detail"
        grows = self.details > 0 and number in _GROWING  # figures of an epoch before know of large tasks
        return "detail" if self.every and (number % self.every == 0 or grows) else ""
