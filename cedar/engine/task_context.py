"""Tasks: the interface through which a run's streams submit work and record measurements."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from cedar.core.block import Block
from cedar.engine.metrics import Metrics
from cedar.engine.runner import Runner, Runners
from cedar.engine.watcher import Watcher
from cedar.executors.choose import names_cluster
from cedar.operators.base import Env
from cedar.tasks.chain import Program, Timing

T = TypeVar("T")


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
    others: Runners | None = None  # runners for the run's other executors, created on first use
    begun: set[tuple[int, Callable[..., Any]]] = field(default_factory=set)  # (operator, function) submitted so far

    def on(self, place: str) -> Tasks:
        """Return a copy that submits to another executor; returns itself if ``place`` means threads of this process."""
        if self.others is None or place == self.runner.name or not is_remote(place):
            return self
        return replace(self, runner=self.others.of(place))

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
        left = sum(len(block.keys.row) for block in blocks) - given
        self.metrics.add(timing, source, not self.runner.local, rows, program.ordinals, left)

    def task_env(self, program: Program, source: int = -1) -> Env:
        """Return the environment for the next task of a program; ``source`` is the ordinal of the source it reads."""
        seeking = self.watcher.seeking
        sought = bool(seeking) and (source in seeking or not seeking.isdisjoint(program.ordinals))
        watch = self.watcher.next(id(program), program.fused, sought)
        return replace(self.env, watch=watch) if watch else self.env
