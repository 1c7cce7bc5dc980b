"""Measurements of a run for the planner: remaining rows, speed, and the profile of operators."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import cached_property
from operator import add, sub
from typing import NamedTuple

from cedar.control.timeline import Timeline
from cedar.engine.binding import Binding
from cedar.engine.machine import machine
from cedar.engine.metrics import Metrics, StageWork
from cedar.engine.runner import Runner
from cedar.plan.graph import Node
from cedar.profile import Machine, Profile
from cedar.profile.figures import lock_share
from cedar.tasks import clocks

_NO_TIMES = (0.0, 0.0, 0.0)
_GATHERS = (-1,)  # key of the stage that gathers batches and runs no operator


class Counters(NamedTuple):
    """Totals of a run up to one moment, or the differences between two moments.

    Args:
        entered: rows read from sources or caches.
        elapsed, waited: wall seconds, and the part of them during which the caller waited for a batch.
        own: CPU seconds of the loader's thread.
        work, around: CPU seconds of operators and reading, and of the overhead of tasks.
        pool, crowded, alone: seconds that task threads ran on a core, seconds that they waited for a busy core, and
            wall seconds, of the time without planning.
    """

    entered: float = 0.0
    elapsed: float = 0.0
    waited: float = 0.0
    own: float = 0.0
    work: float = 0.0
    around: float = 0.0
    pool: float = 0.0
    crowded: float = 0.0
    alone: float = 0.0

    def minus(self, other: Counters) -> Counters:
        return Counters(*map(sub, self, other))


class PlanProgress(NamedTuple):
    """How many source rows a plan has finished, and how many tasks the stage with the most work has finished."""

    rows: float = 0.0
    tasks: int = 0


class RunMeasurements:
    """Measurements of one loader's run.

    Args:
        binding: the bound operators of the pipeline as written.
        metrics: the counters of the loader.
    """

    def __init__(self, binding: Binding, metrics: Metrics) -> None:
        self.workers, self.executor = 1, "threads"
        self.share = 1.0  # fraction of the source rows that this rank reads
        self.gil: float | None = None  # latest ``gil_share``, also of an earlier run; None before a run on threads
        self._binding = binding
        self._metrics = metrics
        self._runner: Runner | None = None
        self._earlier = 0.0  # source rows that tasks finished in earlier epochs
        self._begun: Counters | None = None  # totals when each worker had finished a task in this epoch
        self._kept = Counters()  # totals of the current plan in earlier epochs
        self._work = PlanProgress()  # progress of the current plan in earlier epochs
        self._finished = 0.0  # source rows that tasks finished before the plan or epoch began
        self._at_start: dict[tuple[int, ...], StageWork] = {}  # work of all stages at that time
        self._stages = self._at_start  # work of all stages when measurement began
        self._tasks = 0  # finished tasks at that time
        self._running = 1  # maximum number of running tasks that began under an earlier plan of this epoch
        self._before_planning: Sequence[float] | None = None  # times of threads before it, while it runs
        self._left_out: Sequence[float] = _NO_TIMES  # times of threads during planning
        self.planned = 0.0  # CPU seconds of planning
        self.opening = 0.0  # seconds until the first task of the latest iteration finished
        self._started: float | None = None  # elapsed seconds at the iteration's start; None once a task has finished

    def start(self, runner: Runner) -> None:
        """Begin an iteration under the current plan; the time until its first tasks finish is not measured."""
        if self._metrics.tasks:
            self._kept, self._work = self.seen, self.progress
            self._restart()
            self._earlier = self._finished
        self._runner, self.executor, self.workers = runner, runner.name, runner.workers
        self._running = runner.workers
        self._started, _ = self._metrics.time.so_far(time.perf_counter())

    def renew(self) -> None:
        """Restart measuring for another plan or thread count."""
        self._kept, self._work = Counters(), PlanProgress()
        self._restart()
        self._running = max(self._running, self.workers)

    def _restart(self) -> None:
        """Add the rows so far to those before them, because the next plan may have other stages."""
        self._finished, self._begun = self.finished, None
        self._at_start = self._stages = self._copy_stages()
        self._tasks = self._metrics.tasks

    def _copy_stages(self) -> dict[tuple[int, ...], StageWork]:
        return {stage: copy(work) for stage, work in list(self._metrics.stages.items())}

    def note_task(self) -> bool:
        """Record a finished task. Measurement of a plan starts once a stage has finished as many tasks as workers.

        Tasks that an earlier plan began are not measured, so if that plan had more workers, its number counts.

        Returns:
            Whether measurement has started in this epoch.
        """
        if self._begun is not None:
            return True
        if self._started is not None:
            self.opening, self._started = self._metrics.time.so_far(time.perf_counter())[0] - self._started, None
        first = max(self._running, self.workers)
        if self._metrics.tasks - self._tasks >= first:
            done = _since(self._stages, self._metrics.stages)
            if max((work.tasks for work in done.values()), default=0) >= first:
                self._running = self.workers
                self._stages, self._tasks = self._copy_stages(), self._metrics.tasks
                self._begun = self._now(of_threads=True)
        return self._begun is not None

    @property
    def processes(self) -> int:
        """The size of the process pool that a plan may use."""
        return 1 if self._runner is None else self._runner.workers_elsewhere

    @property
    def read(self) -> float:
        """The number of source rows that readers have finished in this run."""
        return sum(done.rows for stage, done in self._metrics.stages.items() if stage[0] >= 0)

    @property
    def finished(self) -> float:
        """The number of source rows that the tasks of all stages have finished in this run, see ``progress``."""
        return self._finished + self._progress_since(self._at_start).rows

    @property
    def progress(self) -> PlanProgress:
        """The progress of the current plan since each worker finished its first task.

        Readers run ahead of later stages, for example by a shuffle window. Therefore the work of all stages is
        converted to source rows: the total seconds of all stages are divided by the seconds that one source row takes
        in all stages together. Only the rows that readers output reach the later stages.
        """
        since = PlanProgress() if self._begun is None else self._progress_since(self._stages)
        return PlanProgress(self._work.rows + since.rows, self._work.tasks + since.tasks)

    def _progress_since(self, before: Mapping[tuple[int, ...], StageWork]) -> PlanProgress:
        done = {stage: work for stage, work in _since(before, self._metrics.stages).items() if work.rows and work.wall}
        if not done:
            return PlanProgress()
        read = sum(work.rows for stage, work in done.items() if stage[0] >= 0)
        readers = [work for stage, work in self._metrics.stages.items() if stage[0] >= 0]
        left = sum(work.left for work in readers) / max(sum(work.rows for work in readers), 1.0)
        shares = {stage: work.rows / read if stage[0] >= 0 else left for stage, work in done.items()}
        row = sum(work.wall * shares[stage] / work.rows for stage, work in done.items())
        rows = sum(work.wall for work in done.values()) / row if row else read
        return PlanProgress(rows, max(done.values(), key=lambda work: work.wall).tasks)

    @property
    def seen(self) -> Counters:
        """Totals since each worker finished its first task of the plan, except ``pool, crowded, alone``."""
        begun = self._begun  # read once, because the run may end its epoch while the planner thread is here
        return self._kept if begun is None else Counters(*map(add, self._now().minus(begun), self._kept))

    def _now(self, of_threads: bool = False) -> Counters:
        m, clock, threads = self._metrics, self._metrics.time, self._of_threads() if of_threads else _NO_TIMES
        return Counters(m.rows_entered, *clock.so_far(time.perf_counter()), clock.own, *clock.task_cpu(), *threads)

    def _of_threads(self) -> Sequence[float]:
        """Return ``pool, crowded, alone`` so far."""
        before = self._before_planning
        return tuple(map(sub, self._all_of_threads(), self._left_out)) if before is None else before

    def _all_of_threads(self) -> Sequence[float]:
        runner = self._runner
        if runner is None or not (runner.owned or not runner.local):
            return _NO_TIMES
        return *clocks.spent_by(runner._here.threads()), time.perf_counter()

    @contextmanager
    def during_planning(self) -> Iterator[None]:
        """Do not measure threads and calls meanwhile: planning holds the GIL, so they take longer than they will."""
        began, before = time.thread_time(), self._of_threads()
        self._before_planning = before
        self._metrics.planning_ended = math.inf
        try:
            yield
        finally:
            self.planned += time.thread_time() - began
            self._left_out = tuple(map(sub, self._all_of_threads(), before))
            self._before_planning = None
            self._metrics.planning_ended = time.perf_counter()

    @property
    def crowded(self) -> float:
        """The factor by which other programs on the same cores slow down this run; 1.0 means no slowdown."""
        begun = self._begun
        seen = Counters() if begun is None else self._now(of_threads=True).minus(begun)
        return (
            1 + max(seen.crowded, 0.0) / seen.pool if seen.pool > 0 else 1.0
        )  # threads that have ended report no times, so a difference may be negative

    # ---- rows remaining ----------------------------------------------------------------------------------------------

    def remaining(self) -> float | None:
        """Return how many rows of this epoch this rank has not processed yet; None if unknown.

        If metadata lacks row counts, they are estimated from the splits' sizes and the measured bytes per row.
        """
        total = 0.0
        for ordinal, rows, size in self._sizes:
            width = self._metrics.row_bytes.get(ordinal, 0.0)
            if rows is None and not (width and size):
                return None
            total += size / width if rows is None else rows
        return max(0.0, total * self.share - (self.finished - self._earlier)) if total else math.inf

    def rest(self) -> float | None:
        """Estimate the source rows still to be read, assuming that as many rows follow this epoch as came before it."""
        remaining = self.remaining()
        return None if remaining is None else self._earlier + remaining

    @cached_property
    def _sizes(self) -> list[tuple[int, int | None, int]]:
        """The ordinal of each source, its number of rows (None if unknown), and its known bytes."""
        sizes = []
        for source in self._binding.sources:
            splits, ordinal = self._binding.splits(source), self._binding.index[id(source)]
            sizes.append((ordinal, splits.known_rows if splits.counted else None, splits.known_bytes))
        return sizes

    @cached_property
    def _machine(self) -> Machine:
        return machine(measure=False)  # cached: the stored figures do not change during a run

    # ---- the profile -------------------------------------------------------------------------------------------------

    def profile(self, local: bool) -> Profile:
        """Return the profile measured from tasks, including the overhead of tasks and of the loader.

        Args:
            local: all tasks ran on threads of this process.
        """
        from cedar.executors import processes

        here = self._machine
        if processes.ready(self.processes):
            here = replace(here, start_seconds=0.0)
        measured = self._metrics.profile(self._binding.subject, here, workers=self.workers, executor=self.executor)
        nodes, begun = self._binding.nodes, self._begun
        if begun is not None:
            seen, inline = self._now(of_threads=True).minus(begun), self._runner is not None and self._runner.inline
            if seen.entered > 0:
                own = max(0.0, seen.own - (seen.work + seen.around if inline else 0.0)) / seen.entered
                measured = replace(measured, own=own, around=seen.around / seen.entered)
            if local and self.executor == "threads" and seen.pool > 0 and seen.alone > 0:
                busy = (seen.pool + seen.crowded) / seen.alone
                self.gil = gil_share(measured, nodes, self._metrics.time, busy, self.workers)
        return measured if self.gil is None else with_gil(measured, nodes, self.gil)


def _since(
    before: Mapping[tuple[int, ...], StageWork], now: Mapping[tuple[int, ...], StageWork]
) -> dict[tuple[int, ...], StageWork]:
    """Return the work of each stage between two moments; stages without finished tasks are omitted."""
    done = {}
    for stage, work in list(now.items()):
        if stage == _GATHERS:
            continue
        begun = before.get(stage)
        if begun is None:
            done[stage] = work
        elif work.tasks > begun.tasks:
            done[stage] = StageWork(
                work.tasks - begun.tasks, work.rows - begun.rows, work.wall - begun.wall, work.left - begun.left
            )
    return done


def gil_share(profile: Profile, nodes: Sequence[Node], time: Timeline, busy: float, workers: int) -> float:
    """Return the largest fraction of their time, 0 to 1, during which operators that run Python for every row can hold
    the GIL while threads keep that many cores busy.

    Args:
        nodes: the nodes of the pipeline as written.
        busy: the average number of cores that ``workers`` threads kept busy.
    """
    work = {i: time.seconds(i) for i in profile.operators}
    in_python = sum(seconds for i, seconds in work.items() if nodes[i].operator.effects().per_row)
    share = in_python / (sum(work.values()) or 1.0)
    if workers < 2 or not share:
        return 1.0
    return min(lock_share(busy, max(2, min(workers, profile.machine.cores))) / share, 1.0)


def with_gil(profile: Profile, nodes: Sequence[Node], share: float) -> Profile:
    """Add to a profile the fraction of time during which each operator holds the GIL: ``share`` if it runs Python for
    every row, otherwise 0.
    """
    held = {i: share * nodes[i].operator.effects().per_row for i in profile.operators}
    return replace(profile, operators={i: replace(f, gil=held[i]) for i, f in profile.operators.items()})
