"""What a run counts."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from cedar.control.timeline import Timeline
from cedar.core.asking import Use
from cedar.core.observation import Observation
from cedar.core.quota import cores
from cedar.engine.memory import MemoryBound
from cedar.executors.recovery.deaths import Deaths
from cedar.profile import Machine, OperatorProfile, Profile, Subject
from cedar.tasks.chain import Timing

_RECENT = 32  # calls of an operator that its figures come from: they follow a run whose rows change
_FEW = 2  # calls of which the first may have loaded something: what was known before still counts


class CallTimes:
    """The calls of one operator: the first by itself, the recent ones, and how many there were.

    Args:
        former: figures that hold until there are calls enough.
    """

    def __init__(self, former: OperatorProfile | None = None) -> None:
        self.former = former
        self.first: Observation | None = None
        self.recent: deque[Observation] = deque(maxlen=_RECENT)
        self.calls = self.rows_in = self.rows_out = 0

    @property
    def wall(self) -> float:
        """Seconds of all calls, about."""
        seen = [*([self.first] if self.first else []), *self.recent]
        rows = sum(o.rows_in for o in seen)
        return sum(o.wall for o in seen) * self.rows_in / rows if rows else 0.0

    def add(self, observation: Observation) -> None:
        """One more call; one on no rows tells nothing."""
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
        """Medians of the recent calls; rows and what is kept of them over all calls."""
        if self.former is not None and self.calls <= _FEW:
            return self.former
        figures = OperatorProfile.of(label, [*([self.first] if self.first else []), *self.recent])
        keep = self.rows_out / self.rows_in if self.rows_in else 1.0
        return replace(figures, calls=self.calls, rows=self.rows_in, keep=keep)


class SkippedFile(NamedTuple):
    """What was skipped of a damaged file: why, and how many rows; None if unknown."""

    error: str
    rows: int | None

    def __str__(self) -> str:
        return f"{'an unknown number of' if self.rows is None else f'{self.rows:,}'} row(s): {self.error}"


@dataclass
class Metrics:
    """Live counters of one loader."""

    time: Timeline = field(default_factory=Timeline)
    tasks: int = 0
    carried: int = 0  # batches of an epoch before, which opened the next
    left_out: Counter[str] = field(default_factory=Counter)  # by unit: no rank was given them, as they fill no step
    rows_read: int = 0
    bytes_read: int = 0  # decoded, as metadata tell
    rows_kept: int = 0  # of splits that a cache gave
    rows_cached: int = 0  # that one was given
    rows: int = 0
    batches: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    skipped_files: dict[str, SkippedFile] = field(default_factory=dict)  # by URL
    labels: dict[int, str] = field(default_factory=dict)  # operator ordinal to label
    words: Callable[[], Mapping[int, str]] | None = None  # the same as people wrote them, looked up once
    seen: dict[int, CallTimes] = field(default_factory=dict, repr=False)  # by ordinal; from tasks asked for details
    storage: Use = field(default_factory=Use)
    fell_back: int = 0  # blocks that were run again in the order as written
    audited: int = 0  # pieces of what is delivered
    differences: list[str] = field(default_factory=list)  # that audits found
    deaths: Deaths = field(default_factory=Deaths)  # of workers
    results: dict[str, int] = field(default_factory=dict, repr=False)  # bytes of a stage's last one, by its label
    groups: dict[tuple[str, ...], tuple[int, int]] = field(default_factory=dict)  # rows delivered, and held, of each
    history: list[tuple[float, int, float, int]] = field(default_factory=list)  # see ``Report``
    bound: MemoryBound | None = None  # of the memory, where the plan has one
    queued: Callable[[], int] = int  # bytes of results that nothing has taken; of a run that is watched
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def grouped(self, names: tuple[str, ...], rows: int, stored: int) -> None:
        """A batch of a group of columns is delivered."""
        before = self.groups.get(names, (0, 0))
        self.groups[names] = before[0] + rows, before[1] + stored

    @property
    def factors(self) -> dict[tuple[str, ...], float]:
        """Rows per row held, of each group."""
        return {names: rows / max(stored, 1) for names, (rows, stored) in list(self.groups.items())}

    @property
    def weights(self) -> dict[int, float]:
        """What each operator took where they were measured one by one."""
        return {i: seen.wall for i, seen in self.seen.items()}

    @property
    def display_labels(self) -> Mapping[int, str]:
        """The labels of operators, for people."""
        return self.labels if self.words is None else self.words()

    @property
    def bottleneck(self) -> tuple[str, str]:
        """What limits the run, and why."""
        filling = self.rows_cached > self.rows_kept
        with self._lock:
            return self.time.bottleneck(self.display_labels, cores(), filling)

    def __str__(self) -> str:
        """How fast the run is, and what limits it."""
        name, why = self.bottleneck
        rate, limit = f"{self.time.rate(self.rows):,.0f} rows/s", f"{name} ({why})" if why else name
        return f"{rate}; waited for data {self.time.stall:.0%} of the time; bottleneck: {limit}"

    @property
    def rows_entered(self) -> int:
        """Rows that were read, or given by a cache."""
        return self.rows_read + self.rows_kept

    def add(self, timing: Timing, source: int | None = None, extra: bool = False) -> None:
        """What one finished task did, which read the source where one is given; ``extra`` as of ``timed``."""
        with self._lock:
            self.time.add(timing, extra)
            self.tasks += 1
            for operator, observation in timing.seen.items():
                self.observe(operator, observation)
            self.fell_back += timing.fell_back
            if source is not None:
                self.storage.add(timing.storage)
                self.rows_read += timing.rows_read
                self.rows_kept += timing.rows_kept
                self.rows_cached += timing.rows_cached
                if timing.read_columns:
                    self.observe(source, _reading(timing, source))

    def timed(self, timing: Timing, extra: bool) -> None:
        """Count the time of a task; ``extra``: where it ran in this process, no worker did."""
        with self._lock:
            self.time.add(timing, extra)

    def observe(self, operator: int, observation: Observation) -> None:
        """One call of an operator."""
        self.seen.setdefault(operator, CallTimes()).add(observation)

    def renew(self) -> None:
        """What was measured so far counts until there is something newer: a plan, or a function's cost, changed."""
        with self._lock:
            self.seen = {i: CallTimes(seen.figures(self.labels.get(i, ""))) for i, seen in self.seen.items()}

    def profile(
        self,
        subject: Subject,
        machine: Machine,
        *,
        workers: int = 1,
        executor: str = "threads",
        seconds: float | None = None,
    ) -> Profile:
        """The figures of the tasks that were asked for details; operators that never ran are left out.

        ``seconds`` is the wall time that they come from, that of the run by default.
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


def _reading(timing: Timing, source: int) -> Observation:
    """What a task's reading took; bytes as if the filters of a scan had left all rows."""
    rows = timing.rows_read
    scale = rows / max(timing.rows_left, 1)
    columns = {name: int(size * scale) for name, size in timing.read_columns.items()}
    size = sum(columns.values())
    read = [(wall, cpu) for part, wall, cpu in timing.parts if part == ("read", (source,))]
    return Observation(rows, rows, size, size, sum(w for w, _ in read), sum(c for _, c in read), columns)
