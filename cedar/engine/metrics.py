"""Counters and measurements of a run."""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from cedar.control.timeline import Timeline
from cedar.core.block import Observation
from cedar.core.process import cores
from cedar.core.requests import Use
from cedar.engine.memory import MemoryBound
from cedar.executors.recovery.task import Deaths
from cedar.profile import Machine, OperatorProfile, Profile, Subject
from cedar.tasks.chain import Timing

_RECENT = 32  # number of recent calls that an operator's measurements use, so that they follow changes in the data
_FEW_CALLS = 2  # up to this many calls, use earlier measurements, since the first call may have loaded a model


class CallTimes:
    """Measurements of one operator's first call and recent calls, and the total number of calls.

    Args:
        former: earlier measurements, used until enough calls are measured.
    """

    def __init__(self, former: OperatorProfile | None = None) -> None:
        self.former = former
        self.first: Observation | None = None
        self.recent: deque[Observation] = deque(maxlen=_RECENT)
        self.calls = self.rows_in = self.rows_out = 0

    @property
    def wall(self) -> float:
        """Estimated total seconds of all calls."""
        seen = [*([self.first] if self.first else []), *self.recent]
        rows = sum(o.rows_in for o in seen)
        return sum(o.wall for o in seen) * self.rows_in / rows if rows else 0.0

    def add(self, observation: Observation) -> None:
        """Add one call; calls without input rows are ignored."""
        if not observation.rows_in:
            return
        if self.first is None:
            self.first = observation
        else:
            self.recent.append(observation)
        self.calls += 1
        self.rows_in += observation.rows_in
        self.rows_out += observation.rows_out

    def figures(self, label: str) -> OperatorProfile:
        """Return medians over the recent calls, with the row counts and selectivity of all calls."""
        if self.former is not None and self.calls <= _FEW_CALLS:
            return self.former
        figures = OperatorProfile.of(label, [*([self.first] if self.first else []), *self.recent])
        keep = self.rows_out / self.rows_in if self.rows_in else 1.0
        return replace(figures, calls=self.calls, rows=self.rows_in, keep=keep)


class SkippedFile(NamedTuple):
    """The error of a damaged file, and the number of its rows that were skipped (None if unknown)."""

    error: str
    rows: int | None

    def __str__(self) -> str:
        return f"{'an unknown number of' if self.rows is None else f'{self.rows:,}'} row(s): {self.error}"


@dataclass(slots=True)
class StageWork:
    """Totals over the tasks of one stage: tasks, input rows, wall seconds, output rows, and bytes of results.

    A block that a task delivers before it ends counts as a task.
    """

    tasks: int = 0
    rows: float = 0.0
    wall: float = 0.0
    left: float = 0.0  # output rows
    bytes: float = 0.0  # of the results of stages that read no source


@dataclass
class Metrics:
    """Live counters of one loader."""

    time: Timeline = field(default_factory=Timeline)
    tasks: int = 0
    stages: dict[tuple[int, ...], StageWork] = field(default_factory=dict)  # by (source or -1, *operators)
    planning_ended: float = 0.0  # time.perf_counter() when planning last ended; infinity while it runs
    taken: Callable[[], None] | None = None  # called after a task's result was recorded
    carried: int = 0  # batches of the previous epoch that were delivered at the start of the next
    left_out: Counter[str] = field(default_factory=Counter)  # rows or batches that did not fill a step, by kind
    rows_read: int = 0
    bytes_read: int = 0  # decoded bytes, according to metadata
    row_bytes: dict[int, float] = field(default_factory=dict)  # decoded bytes per row of each source, by ordinal
    rows_kept: int = 0  # rows that a cache returned instead of a source
    rows_cached: int = 0  # rows added to a cache
    rows: int = 0
    batches: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    skipped_files: dict[str, SkippedFile] = field(default_factory=dict)  # by URL
    labels: dict[int, str] = field(default_factory=dict)  # labels of operators, by ordinal
    words: Callable[[], Mapping[int, str]] | None = None  # returns labels for display; None uses ``labels``
    seen: dict[int, CallTimes] = field(default_factory=dict, repr=False)  # measured calls, by operator ordinal
    storage: Use = field(default_factory=Use)
    fell_back: int = 0  # blocks that were computed again in the order as written
    audited: int = 0  # delivered pieces that an audit computed again as written
    differences: list[str] = field(default_factory=list)  # differences that audits found
    deaths: Deaths = field(default_factory=Deaths)  # workers that died
    results: dict[str, int] = field(default_factory=dict, repr=False)  # bytes of each stage's latest result, by label
    groups: dict[tuple[str, ...], tuple[int, int]] = field(default_factory=dict)  # (delivered, stored) rows by group
    history: list[tuple[float, int, float, int]] = field(default_factory=list)  # see ``Report``
    bound: MemoryBound | None = None  # the memory limit, if the plan has one
    queued: Callable[[], int] = int  # returns the bytes of finished results not delivered yet; 0 unless watched
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def grouped(self, names: tuple[str, ...], rows: int, stored: int) -> None:
        """Add the delivered and the stored rows of one feature group in a batch."""
        before = self.groups.get(names, (0, 0))
        self.groups[names] = before[0] + rows, before[1] + stored

    @property
    def factors(self) -> dict[tuple[str, ...], float]:
        """Delivered rows per stored row, for each feature group."""
        return {names: rows / max(stored, 1) for names, (rows, stored) in list(self.groups.items())}

    @property
    def weights(self) -> dict[int, float]:
        """Seconds of each operator, from tasks that measured operators separately."""
        return {i: seen.wall for i, seen in self.seen.items()}

    @property
    def display_labels(self) -> Mapping[int, str]:
        """Labels of operators for display."""
        return self.labels if self.words is None else self.words()

    @property
    def bottleneck(self) -> tuple[str, str]:
        """The name of the part that limits the run's speed, and the reason."""
        filling = self.rows_cached > self.rows_kept
        with self._lock:
            return self.time.bottleneck(self.display_labels, cores(), filling)

    def __str__(self) -> str:
        """Summarize the run's speed and its bottleneck in one line."""
        name, why = self.bottleneck
        rate, limit = f"{self.time.rate(self.rows):,.0f} rows/s", f"{name} ({why})" if why else name
        return f"{rate}; waited for data {self.time.stall:.0%} of the time; bottleneck: {limit}"

    @property
    def rows_entered(self) -> int:
        """Rows that were read from sources or returned by a cache."""
        return self.rows_read + self.rows_kept

    def add(
        self,
        timing: Timing,
        source: int | None = None,
        extra: bool = False,
        rows: int = 0,
        operators: Iterable[int] = (),
        left: int = 0,
        size: int = 0,
    ) -> None:
        """Add a finished task.

        Args:
            source, operators: the ordinals of the source that the task read, if any, and of the operators that it ran.
            extra: see ``timed``.
            rows, left: input and output rows; when reading, all rows of the split are input, even if not decoded.
            size: bytes of the result.
        """
        with self._lock:
            stage = (-1 if source is None else source, *sorted(operators))
            done = self.stages.get(stage) or self.stages.setdefault(stage, StageWork())
            done.tasks, done.rows = done.tasks + 1, done.rows + rows
            done.wall, done.left, done.bytes = done.wall + timing.took, done.left + left, done.bytes + size
            self.time.add(timing, extra)
            self.tasks += 1
            # Planning holds the GIL, so calls of this process that ran meanwhile took longer than they will.
            disturbed = timing.began < self.planning_ended and timing.process == os.getpid()
            for operator, observation in timing.seen.items():
                self.observe(operator, observation, disturbed)
            self.fell_back += timing.fell_back
            if source is not None:
                if timing.storage is not None:
                    self.storage.add(timing.storage)
                self.rows_read += timing.rows_read
                self.rows_kept += timing.rows_kept
                self.rows_cached += timing.rows_cached
                if timing.read_columns:
                    read = _read_observation(timing, source)
                    self.row_bytes[source] = read.bytes_out / max(read.rows_out, 1)
                    self.observe(source, read, disturbed)
        if self.taken is not None:
            self.taken()

    def read_so_far(self, source: int, rows: int, operators: Iterable[int], left: int = 0, size: int = 0) -> None:
        """Add rows that a task delivered before it ended. The caller does not add them again when the task ends.

        Args:
            size: bytes of the ``left`` rows that are left of ``rows``; 0 if unknown.
        """
        with self._lock:
            if left and size:
                self.row_bytes.setdefault(source, size / left)
            stage = (source, *sorted(operators))
            done = self.stages.get(stage) or self.stages.setdefault(stage, StageWork())
            done.tasks, done.rows, done.left = done.tasks + 1, done.rows + rows, done.left + left
        if self.taken is not None:
            self.taken()

    def timed(self, timing: Timing, extra: bool) -> None:
        """Add the time of a task; ``extra``: it ran in this process although the run's workers are other processes."""
        with self._lock:
            self.time.add(timing, extra)

    def observe(self, operator: int, observation: Observation, disturbed: bool = False) -> None:
        """Add one call of an operator. A disturbed one counts only if no other measurement of the operator is known."""
        times = self.seen.setdefault(operator, CallTimes())
        if not disturbed or not (times.calls or times.former):
            times.add(observation)

    def renew(self) -> None:
        """Mark measurements as old, so that newer ones replace them: the plan or the cost of a function has changed."""
        with self._lock:
            self.seen = {i: CallTimes(seen.figures(self.labels.get(i, ""))) for i, seen in self.seen.items()}

    def rows_per_task(self, operators: Iterable[int], seconds: float, size: int) -> int | None:
        """Return how many rows make a task of this time and result size, from tasks of the stage, otherwise from its
        operators measured separately; None if neither ran yet.
        """
        with self._lock:
            stage = self.stages.get((-1, *sorted(operators)))
            if stage is not None and stage.rows:
                wall, out = stage.wall / stage.rows, stage.bytes / stage.rows
            else:
                times = [self.seen.get(i, CallTimes()) for i in operators]
                seen = [each.figures("") for each in times if each.calls or each.former]
                if not seen or len(seen) < len(times):
                    return None
                wall, out = sum(each.wall for each in seen), max(each.bytes_out for each in seen)
        return max(1, int(min(seconds / max(wall, 1e-9), size / max(out, 1.0))))

    def profile(
        self,
        subject: Subject,
        machine: Machine,
        *,
        workers: int = 1,
        executor: str = "threads",
        seconds: float | None = None,
    ) -> Profile:
        """Return the profile of the operators that ran, from tasks that measured operators separately.

        ``seconds`` is the wall time of these measurements; None means the elapsed time of the run.
        """
        with self._lock:
            ran = [(i, seen) for i, seen in sorted(self.seen.items()) if seen.calls or seen.former]
            return Profile(
                pipeline=subject.digest,
                operators={i: seen.figures(subject.labels[i]) for i, seen in ran},
                machine=machine,
                rows=self.rows_read,
                seconds=self.time.elapsed if seconds is None else seconds,
                workers=workers,
                executor=executor,
            )


def _read_observation(timing: Timing, source: int) -> Observation:
    """Return the time and bytes of a task's reading; bytes are scaled up to include rows that the scan filtered out."""
    rows, read, wall, cpu = timing.rows_read, ("read", (source,)), 0.0, 0.0
    scale = rows / max(timing.rows_passed, 1)
    columns = {name: int(size * scale) for name, size in timing.read_columns.items()}
    size = sum(columns.values())
    for part, part_wall, part_cpu in timing.parts:
        if part == read:
            wall, cpu = wall + part_wall, cpu + part_cpu
    return Observation(rows, rows, size, size, wall, cpu, columns)
