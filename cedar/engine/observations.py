"""Figures of a run, as far as plans are made and judged by them: the rest of it, its speed, and its profile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from operator import add, sub
from typing import NamedTuple

from cedar.control.timeline import Timeline
from cedar.datasets.split_table import SplitTable
from cedar.engine.binding import Binding
from cedar.engine.machine import machine
from cedar.engine.metrics import Metrics
from cedar.engine.runner import Runner
from cedar.executors import processes
from cedar.plan.graph import Node
from cedar.profile import Machine, Profile
from cedar.profile.queueing import lock_share
from cedar.tasks import clocks

_AHEAD = 2  # splits read ahead of what is worked on, for each worker
_BUSY = 0.8  # of the cores kept busy by threads: nothing waits for the GIL


class Counters(NamedTuple):
    """Of a run at one moment, or of a while of it.

    Args:
        entered, delivered, deliveries: rows that were read, or given by a cache; rows delivered, and how often.
        elapsed, waited: wall seconds, and those in which something waited for a delivery.
        own: CPU seconds of the loader's thread.
        work, around: CPU seconds of operators and of reading, and of tasks around these.
        pool, crowded: seconds of the threads that run tasks: with a core, and waiting for one that others had.
    """

    entered: float = 0.0
    delivered: float = 0.0
    deliveries: float = 0.0
    elapsed: float = 0.0
    waited: float = 0.0
    own: float = 0.0
    work: float = 0.0
    around: float = 0.0
    pool: float = 0.0
    crowded: float = 0.0

    def minus(self, other: Counters) -> Counters:
        return Counters(*map(sub, self, other))

    def plus(self, other: Counters) -> Counters:
        return Counters(*map(add, self, other))


class RunFigures:
    """Of one loader.

    Args:
        binding: the bound operators of the pipeline as written.
        metrics: the loader's.
    """

    def __init__(self, binding: Binding, metrics: Metrics) -> None:
        self.workers, self.executor = 1, "threads"
        self.processes = 1  # of the pool that a plan may use
        self.share = 1.0  # of the rows, that this rank reads
        self._binding = binding
        self._metrics = metrics
        self._runner: Runner | None = None
        self._earlier = (0.0, 0)  # rows read, and delivered, in earlier epochs
        self._begun: Counters | None = None  # when the plan made its first delivery in this epoch
        self._kept = Counters()  # of the plan, in earlier epochs
        self.opening = 0.0  # seconds that the first delivery of the latest iteration took
        self._started: float | None = None  # seconds of the run when one began that has none yet

    def start(self, runner: Runner) -> None:
        """An iteration begins, under the plan before: what it took until its first delivery is not of the plan."""
        self._kept, self._begun = self.seen, None
        self._runner, self.executor, self.workers = runner, runner.name, runner.workers
        self.processes = runner.others.workers if runner.others is not None else runner.workers
        self._earlier = (self._metrics.rows_entered, self._metrics.rows)
        self._started = self._metrics.time.elapsed

    def renew(self, again: bool) -> None:
        """Another plan takes over, which reads ``again`` what was read ahead, or another number of threads."""
        self._kept, self._begun = Counters(), None
        if again and self._rows is not None:
            ahead = self._metrics.rows_entered - self._earlier[0] - self._done()
            self._earlier = (self._earlier[0] + ahead, self._earlier[1])

    def delivers(self) -> None:
        """To be called between two deliveries: the first one of a plan begins what is measured of it."""
        if self._begun is None:
            self._begun = self._now(of_threads=True)
            if self._started is not None:
                self.opening, self._started = self._metrics.time.elapsed - self._started, None

    @property
    def seen(self) -> Counters:
        """Since the first delivery of the plan; nothing of its threads."""
        begun = self._begun  # plans are made next to the run, which may end its epoch meanwhile
        return self._kept if begun is None else self._now().minus(begun).plus(self._kept)

    def _now(self, of_threads: bool = False) -> Counters:
        m, time = self._metrics, self._metrics.time
        pool = self._pool() if of_threads else (0.0, 0.0)
        work = time.work, time.around
        return Counters(m.rows_entered, m.rows, m.batches, time.elapsed, time.waited, time.own, *work, *pool)

    def _pool(self) -> tuple[float, float]:
        runner = self._runner
        pool = None if runner is None or not (runner.owned or not runner.local) else runner._here
        return clocks.spent_by(list(pool._threads)) if isinstance(pool, ThreadPoolExecutor) else (0.0, 0.0)

    @property
    def crowded(self) -> float:
        """How many times as long everything takes as it would if other programs had none of our cores."""
        begun = self._begun
        seen = Counters() if begun is None else self._now(of_threads=True).minus(begun)
        return (
            1 + max(seen.crowded, 0.0) / seen.pool if seen.pool > 0 else 1.0
        )  # there are no figures of threads that ended

    # ---- what is left ------------------------------------------------------------------------------------------------

    def remaining(self) -> float | None:
        """Rows of this epoch that this rank is still to read and work on, where metadata tells."""
        total = self._rows
        if total is None:
            return None
        return max(0.0, total * self.share - self._done()) if total else math.inf

    def rest(self) -> float | None:
        """Rows that are still to be delivered: in this epoch, and in as many more as there were."""
        remaining, done = self.remaining(), self._done()
        if remaining is None or done <= 0:
            return None
        return self._earlier[1] + (self._metrics.rows - self._earlier[1]) / done * remaining

    def _done(self) -> float:
        """Rows of this epoch that were worked on; of the splits that were read last, half is taken to be done."""
        read, splits = self._metrics.rows_entered - self._earlier[0], sum(map(len, self._splits))
        ahead = _AHEAD * self.workers * (self._rows or 0) / max(splits, 1)
        return read - min(read, ahead) / 2

    @cached_property
    def _machine(self) -> Machine:
        return machine(measure=False)  # in its files there is nothing new while a run continues

    @cached_property
    def _splits(self) -> list[SplitTable]:
        return [self._binding.splits(source) for source in self._binding.sources]

    @cached_property
    def _rows(self) -> int | None:
        counted = all(splits.counted for splits in self._splits)
        return sum(splits.known_rows for splits in self._splits) if counted else None

    # ---- the profile -------------------------------------------------------------------------------------------------

    def profile(self, local: bool) -> Profile:
        """What was measured of the tasks, and around them.

        Args:
            local: everything ran on threads of this process.
        """
        here = self._machine
        if processes.ready(self.processes):
            here = replace(here, start_seconds=0.0)
        measured = self._metrics.profile(self._binding.subject, here, workers=self.workers, executor=self.executor)
        begun = self._begun
        if begun is None:
            return measured
        seen, inline = self._now(of_threads=True).minus(begun), self._runner is not None and self._runner.inline
        if seen.entered > 0:
            own = max(0.0, seen.own - (seen.work + seen.around if inline else 0.0)) / seen.entered
            measured = replace(measured, own=own, around=seen.around / seen.entered)
        if not local or self.executor != "threads":
            return measured
        busy = (seen.own + seen.pool + seen.crowded) / seen.elapsed if seen.elapsed > 0 else 0.0
        return with_gil(measured, self._binding.nodes, self._metrics.time, busy, self.workers)


def with_gil(profile: Profile, nodes: Sequence[Node], time: Timeline, busy: float, workers: int) -> Profile:
    """What runs Python for every row is taken to hold the GIL, so that who waits for it waits for nothing else;
    threads that keep several cores busy hold it for a part of the time only.

    Cores that idle say nothing: that may be an import, or storage.

    Args:
        nodes: of the pipeline as written.
        busy: how many cores threads kept busy, so many of which were at work.
    """
    cores = profile.machine.cores
    work = {i: time.seconds(i) for i in profile.operators}
    taken = {i: float(nodes[i].operator.effects().per_row) for i in work}
    share = sum(taken[i] * work[i] for i in work) / (sum(work.values()) or 1.0)
    reported = workers > 1 and busy > _BUSY * min(workers, cores)
    less = min(lock_share(busy, max(2, min(workers, cores))) / share, 1.0) if reported and share else 1.0
    operators = {i: replace(f, gil=taken[i] * less) for i, f in profile.operators.items()}
    return replace(profile, operators=operators)
