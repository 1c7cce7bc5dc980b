"""Decide which tasks measure their operators, and when reading stops for a new plan."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

CALLS = 3  # calls of each operator before planning: the first may load a model
DETAILS = 6  # tasks of each stage that measure each operator separately
EVERY = 64  # after those, one task in this many does
_LARGER_TASKS = frozenset({12, 16, 24, 32, 48})  # tasks grow, and the cost of a call weighs less in larger ones
_FUSED_TASK = 2  # the first task that measures fused operators separately: task 1 may load libraries or models
_MAX_SEEKING_TASKS = 256  # tasks of a stage after which operators that no row has reached are ignored


class TimeUp(Exception):
    """Ends a run that is measured for a limited time."""


@dataclass
class Watcher:
    """Decides for the tasks of one plan what they measure.

    Args:
        details: number of tasks of each stage that measure each operator separately.
        every: after those, one task in this many does; 0 means none.
        fence: True once windows that have not begun are left for another plan.
        whole: every task measures each operator, on all its rows.
        until: ``time.perf_counter()`` after which no task starts.
        seeking: operators with too few measurements: every task that runs one of them measures.
    """

    details: int = 0
    every: int = 0
    fence: bool = False
    whole: bool = False
    until: float = math.inf
    seeking: frozenset[int] = frozenset()
    _tasks: Counter[int] = field(default_factory=Counter, repr=False)  # tasks of each stage so far
    _since: Counter[int] = field(default_factory=Counter, repr=False)  # task number when a new series began
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def measure_more(self, details: int) -> None:
        """Let the next ``details`` tasks of each stage measure each operator."""
        with self._lock:
            self.details, self._since = details, Counter({stage: n - 1 for stage, n in self._tasks.items()})

    def next(self, stage: int, together: bool = False, sought: bool = False) -> Literal["", "detail", "whole"]:
        """Return what the next task of a stage measures.

        Args:
            together: the stage runs operators fused, so that their separate costs must be measured in detail.
            sought: the task runs an operator with too few measurements.

        Raises:
            TimeUp: the time is over; the first task of each stage always runs.
        """
        with self._lock:
            self._tasks[stage] += 1
            number = self._tasks[stage]
            new = number - self._since.get(stage, 0)
        if number > 1 and time.perf_counter() > self.until:
            raise TimeUp
        if self.whole:
            return "whole"
        if together and (number == _FUSED_TASK or number % EVERY == 0):
            return "detail"
        if 1 < new <= self.details + 1:  # not the first task, so that the first batch is not delayed
            return "detail"
        if sought and 1 < new <= _MAX_SEEKING_TASKS:
            return "detail"
        grows = self.details > 0 and number in _LARGER_TASKS  # otherwise an earlier epoch has measured large tasks
        return "detail" if self.every and (number % self.every == 0 or grows) else ""
