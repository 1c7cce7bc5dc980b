"""Known: what a run has shown of its operators and of itself, as far as plans are made from it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from cedar.datasets.base import Split
from cedar.execution import processes
from cedar.execution.binding import Binding
from cedar.execution.machine import machine
from cedar.execution.measure import subject
from cedar.execution.metrics import Metrics
from cedar.execution.pace import Pace
from cedar.execution.probing import with_gil
from cedar.execution.runner import Runner
from cedar.profile import Profile, Subject
from cedar.profile.queueing import lock_share

_UNSURE = (0.4, 0.9)  # a share of the GIL between these is asked for again
_SOME = 0.15  # of an operator's time: with less, two threads do more than one
_HELD = 0.4  # of an operator's time
_SPREAD = 0.8  # of the cores kept busy by threads: nobody waits for the GIL
_ASKING = 0.1  # seconds that it takes to find out who holds the GIL: processes must save more
_UNTIL = 0.3  # seconds of the run that tell how busy the cores are, if anything does
_AHEAD = 2  # splits read ahead of what is worked on, for each worker
_ALONE = 1.1  # cores: threads that keep no more of them busy may wait for one another


class Known:
    """Of one loader.

    Args:
        binding: the bound operators of the pipeline as written.
        metrics: the loader's.
    """

    def __init__(self, binding: Binding, metrics: Metrics) -> None:
        self.workers, self.executor = 1, "threads"
        self.processes = 1  # of the pool that a plan may use
        self.share = 1.0  # of the rows, that this rank reads
        self.pace = Pace(metrics)
        self._binding = binding
        self._metrics = metrics
        self._gil: dict[int, float] = {}  # by ordinal, once somebody asked
        self._doubtful = False  # others had the cores then: who waits for a core holds up those who wait for the GIL
        self._earlier = (0, 0.0)  # rows read, and seconds waited, in earlier epochs

    def start(self, runner: Runner) -> None:
        """An iteration begins."""
        self.executor, self.workers = runner.name, runner.workers
        self.processes = runner.others.workers if runner.others is not None else runner.workers
        self._earlier = (self._metrics.rows_entered, self._metrics.waited)
        self.pace.start(runner)

    def renew(self) -> None:
        """Another plan takes over: the figures of its tasks count, as soon as there are some."""
        self._metrics.renew()
        self.pace.renew()

    # ---- what is left ------------------------------------------------------------------------------------------------

    def horizon(self) -> float | None:
        """Rows that this rank should read yet, where metadata tells: as many as the epochs begun so far have."""
        total = self._rows
        return None if total is None else self._earlier[0] + total * self.share if total else math.inf

    def remaining(self) -> float | None:
        """Rows of this epoch that this rank is still to read and work on, where metadata tells."""
        total = self._rows
        if total is None:
            return None
        return max(0.0, total * self.share - self._done()) if total else math.inf

    def _done(self) -> float:
        """Rows of this epoch that were worked on; of the splits that were read last, half is taken to be done."""
        read, splits = self._metrics.rows_entered - self._earlier[0], sum(map(len, self._splits))
        ahead = _AHEAD * self.workers * (self._rows or 0) / max(splits, 1)
        return read - min(read, ahead) / 2

    def rest(self) -> float:
        """Seconds for which the trainer will still wait: in this epoch, and in as many more as there were."""
        (_, waited), metrics, remaining = self._earlier, self._metrics, self.remaining()
        done = self._done()
        if remaining is None or done <= 0:
            return metrics.waited
        return waited + (metrics.waited - waited) / done * remaining

    @cached_property
    def _subject(self) -> Subject:
        return subject(self._binding.root, self._binding)

    @cached_property
    def _splits(self) -> list[Sequence[Split]]:
        return [self._binding.splits(source) for source in self._binding.sources]

    @cached_property
    def _rows(self) -> int | None:
        rows = [split.rows for splits in self._splits for split in splits]
        return None if any(r is None for r in rows) else sum(r or 0 for r in rows)

    # ---- figures -----------------------------------------------------------------------------------------------------

    def figures(self) -> Profile:
        """What was measured of the tasks."""
        here = machine(measure=False)
        if processes.ready(self.processes):
            here = replace(here, start_seconds=0.0)
        found = self._metrics.profile(self._subject, here, workers=self.workers, executor=self.executor)
        return replace(found, own=self.pace.own, around=self.pace.around)

    def profile(self, local: bool) -> Profile:
        """What was measured, and what follows from it.

        Args:
            local: everything ran on threads of this process.
        """
        return self.completed(self.figures(), local)

    def asks(self, profile: Profile, horizon: float | None) -> bool:
        """Who holds the GIL decides something: processes are worth their start, and threads do not do as well.

        May wait for a moment, beside the run, until it is known how busy the threads are.
        """
        if self.executor != "threads" or self.workers < 2 or not self._long(profile, horizon):
            return False
        end = time.perf_counter() + _UNTIL
        while not self.pace.busy and self.pace.seconds < _UNTIL and time.perf_counter() < end:
            time.sleep(0.01)
        cores = profile.machine.cores
        # More threads than cores take the cores from each other: that they want one says nothing of the GIL then.
        busy = self.pace.busy if self.workers <= cores else self.pace.cores
        if not self.pace.here or busy > _SPREAD * min(self.workers, cores):
            return False
        unsure = any(_UNSURE[0] < gil < _UNSURE[1] for gil in self._gil.values())
        return not self._gil or unsure or (self._doubtful and not self.pace.crowded)

    def _long(self, profile: Profile, horizon: float | None) -> bool:
        """Enough is to come for other processes to be worth their start, if one thread at a time can work here."""
        if horizon is None:
            return True
        machine, branches = profile.machine, max(len(self._splits), 1)
        per_row = sum(figures.cpu for figures in profile.operators.values()) / branches
        there = per_row / max(1, min(self.workers, machine.cores))
        return horizon * per_row - machine.seconds_with_start(horizon, per_row, there) > _ASKING

    @property
    def guesses(self) -> bool:
        """Nobody asked who holds the GIL."""
        return self.executor == "threads" and self.workers > 1 and not self._gil

    def ask(self, profile: Profile) -> None:
        """Find out who holds the GIL, by calls beside the run."""
        probed = with_gil(profile, self._binding, self.workers)
        before = {} if self._doubtful else self._gil
        for i, figures in probed.operators.items():  # a run that was not busy holds nobody up
            self._gil[i] = max(before.get(i) or 0.0, figures.gil or 0.0)
        self._doubtful = self.pace.crowded and self.workers <= profile.machine.cores

    @property
    def takes_turns(self) -> bool:
        """Threads that hold the GIL for some of their time, as somebody found, and that do not fill the cores."""
        return (
            self.executor == "threads"
            and self.workers > 1
            and max(self._gil.values(), default=0.0) > _SOME
            and self.pace.cores <= _SPREAD * min(self.workers, machine(measure=False).cores)
        )

    def hold_the_gil(self) -> None:
        """One thread does what all did: those who may hold the GIL do."""
        self._gil, self._doubtful = {i: float(share > 0.0) for i, share in self._gil.items()}, False

    def completed(self, profile: Profile, local: bool) -> Profile:
        """With what is known of who holds the GIL; who does waits for it, not for anything else."""
        threads = local and self.executor == "threads"
        gil = self._bounded(profile, self.pace.cores if threads else 0.0)
        operators = {
            i: replace(f, gil=gil[i], wall=f.cpu if (gil[i] or 0.0) > _HELD else f.wall)
            for i, f in profile.operators.items()
        }
        return replace(profile, operators=operators)

    def _bounded(self, profile: Profile, cores: float) -> dict[int, float | None]:
        """Shares of the GIL by ordinal. Threads that keep several cores busy hold it for a part of the time only.

        Of operators that nobody asked about that is a guess, made where cores are busy alone: they idle for other
        reasons, too, such as an import, and a guess must not lead to processes.
        """
        gil = {i: self._gil.get(i, f.gil) for i, f in profile.operators.items()}
        busy = cores > _SPREAD * min(self.workers, profile.machine.cores)
        if cores < _ALONE or self.workers < 2 or not (busy or self._gil):
            return gil
        nodes = self._binding.nodes
        taken = {i: float(nodes[i].operator.effects().per_row) if g is None else g for i, g in gil.items()}
        work = {i: self._metrics.seconds.get(i, 0.0) for i in taken}
        held = sum(taken[i] * work[i] for i in work) / (sum(work.values()) or 1.0)
        most = lock_share(cores, max(2, min(self.workers, profile.machine.cores)))
        return {i: share * most / held for i, share in taken.items()} if held > most else gil
