"""Tasks: how a run's streams submit work and record measurements, and which tasks measure their operators."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from cedar.core.block import Block
from cedar.engine.metrics import Metrics
from cedar.engine.runner import Runner
from cedar.executors.choose import names_cluster
from cedar.operators.base import Env
from cedar.tasks.chain import Program, Timing

T = TypeVar("T")
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
    _tasks: dict[int, int] = field(default_factory=dict, repr=False)  # tasks of each stage so far
    _since: dict[int, int] = field(default_factory=dict, repr=False)  # tasks of each stage before ``measure_more``
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def measure_more(self, details: int) -> None:
        """Make the next ``details`` tasks of each stage measure each operator."""
        with self._lock:
            self.details, self._since = details, {stage: n - 1 for stage, n in self._tasks.items()}

    def task_env(self, env: Env, program: Program, source: int = -1) -> Env:
        """Return ``env`` with what the next task of a stage measures.

        Args:
            program: what the tasks of the stage run.
            source: the ordinal of the source that they read; -1 for none.

        Raises:
            TimeUp: the time is up; the first task of each stage always runs.
        """
        stage, seeking, most = id(program), self.seeking, self.details
        with self._lock:
            self._tasks[stage] = number = self._tasks.get(stage, 0) + 1
            new = number - self._since.get(stage, 0)
        if number > 1 and time.perf_counter() > self.until:
            raise TimeUp
        if self.whole:
            return replace(env, watch="whole")
        if seeking and (source in seeking or not seeking.isdisjoint(program.ordinals)):
            most = max(most, _MAX_SEEKING_TASKS - 1)
        grows = self.details > 0 and number in _LARGER_TASKS  # without details, an earlier epoch measured large tasks
        if (
            1 < new <= most + 1  # the first task measures nothing, so that the first batch is not delayed
            or (self.every and (number % self.every == 0 or grows))
            or (program.fused and (number == _FUSED_TASK or number % EVERY == 0))  # else no task shows separate costs
        ):
            return replace(env, watch="detail")
        return env


def is_remote(place: str) -> bool:
    """Whether an executor name means other processes, on this machine or on a cluster."""
    return place in ("processes", "dask") or names_cluster(place)


@dataclass(frozen=True)
class Tasks:
    """Submits the work of a run's streams, and records its time and rows."""

    runner: Runner
    env: Env
    metrics: Metrics
    watcher: Watcher = field(default_factory=Watcher)
    begun: set[tuple[int, Callable[..., Any]]] = field(default_factory=set)  # (operator, function) submitted so far

    def on(self, place: str) -> Tasks:
        """Return a copy that submits to another executor; returns itself if ``place`` means threads of this process."""
        if not place or not is_remote(place) or (runner := self.runner.of(place)) is self.runner:
            return self
        return replace(self, runner=runner)

    def submit(self, operator: int, fn: Callable[..., T], *args: Any) -> Future[T]:
        """Run a function of a stream operator in this process. Its first call runs immediately in this thread, because
        the run waits for it, and in the queue it would wait for splits being read.
        """
        hurry = (operator, fn) not in self.begun
        self.begun.add((operator, fn))
        return self.runner.submit(self._timed, operator, fn, *args, hurry=hurry)

    def _timed(self, operator: int, fn: Callable[..., T], *args: Any) -> T:
        timing, worked = Timing(), time.thread_time()
        try:
            return fn(*args)
        finally:
            wall = time.perf_counter() - timing.began
            timing.parts.append((("stream", (operator,)), wall, time.thread_time() - worked))
            timing.ended()
            self.metrics.timed(timing, not self.runner.local)

    def done(
        self, timing: Timing, source: int, rows: int, program: Program, blocks: Sequence[Block] = (), given: int = 0
    ) -> None:
        """Record a finished reading task; ``given`` of its output rows were recorded before it ended."""
        if blocks and self.metrics.time.recording is not None:
            first = blocks[0].keys.ends
            timing.ends = first if len(blocks) == 1 else first[:3] + blocks[-1].keys.ends[3:]  # type: ignore[assignment]
        left = -given
        for block in blocks:
            left += len(block.keys.row)
        self.metrics.add(timing, source, not self.runner.local, rows, program.ordinals, left)
