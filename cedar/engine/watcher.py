"""Decide which tasks measure their operators, and when reading stops so that a new plan can begin."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

CALLS = 3  # measured calls of each operator before planning, since the first may load a model
DETAILS = 6  # number of tasks of each stage that measure each operator separately
EVERY = 64  # after the first DETAILS tasks, one task in this many measures operators
_LARGER_TASKS = frozenset({12, 16, 24, 32, 48})  # also measured: tasks grow, and rows cost less in larger tasks
_FUSED_TASK = 2  # the first task that measures fused operators separately: task 1 may load libraries or models
_MAX_SEEKING_TASKS = 256  # tasks of a stage after which operators that no row has reached are ignored


class TimeUp(Exception):
    """Raised to end a run that is measured for a limited time."""


@dataclass
class Watcher:
    """Decides what the tasks of one plan measure.

    Args:
        details: number of tasks of each stage that measure each operator separately.
        every: after those tasks, one task in this many measures operators; 0 means none.
        fence: True once no further windows may begin, since another plan will read them.
        whole: every task measures each operator, on all its rows.
        until: value of ``time.perf_counter()`` after which no task starts.
        seeking: ordinals of operators with too few measurements; tasks that run one of them measure it.
    """

    details: int = 0
    every: int = 0
    fence: bool = False
    whole: bool = False
    until: float = math.inf
    seeking: frozenset[int] = frozenset()
    _tasks: Counter[int] = field(default_factory=Counter, repr=False)  # tasks of each stage so far
    _since: Counter[int] = field(default_factory=Counter, repr=False)  # tasks of each stage before ``measure_more``
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def measure_more(self, details: int) -> None:
        """Make the next ``details`` tasks of each stage measure each operator."""
        with self._lock:
            self.details, self._since = details, Counter({stage: n - 1 for stage, n in self._tasks.items()})

    def next(self, stage: int, together: bool = False, sought: bool = False) -> Literal["", "detail", "whole"]:
        """Return what the next task of a stage measures.

        Args:
            together: the stage runs several operators fused, so only a detailed measurement shows their separate costs.
            sought: the task runs an operator with too few measurements.

        Raises:
            TimeUp: the time is up; the first task of each stage always runs.
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
        if 1 < new <= self.details + 1:  # the first task measures nothing, so that the first batch is not delayed
            return "detail"
        if sought and 1 < new <= _MAX_SEEKING_TASKS:
            return "detail"
        grows = self.details > 0 and number in _LARGER_TASKS  # without details, an earlier epoch measured large tasks
        return "detail" if self.every and (number % self.every == 0 or grows) else ""
