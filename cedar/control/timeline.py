"""Measures where a run spends its time. Reports, progress displays and ``explain()`` show these figures.

Each task is measured where it runs, and its times return with its result. The coordinator adds them up, with the times
that it measures itself. The parts of the workers' time add up to the capacity of the workers, and the parts of
the loader's time add up to the wall time.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from struct import pack, unpack
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal[
    "read", "operator", "stream", "gather", "convert", "cache", "ship", "around", "import", "compile"
]
Part: TypeAlias = tuple[Kind, tuple[int, ...]]  # the kind of work, and the ordinals of its operators

Ends: TypeAlias = tuple[int, int, int, int, int, int] | tuple[()]  # source, file, row number of the first and last row

TRAINER, START, DATA, IDLE = "the trainer", "start", "waiting for data", "idle"
_NAMES: dict[Kind, str] = {
    "gather": "gathering rows", "convert": "converting batches", "cache": "keeping rows for cache()",
    "ship": "sending code and rows", "around": "around operators",
    "import": "importing libraries", "compile": "compiling functions",
}  # fmt: skip
NO_OPERATORS = frozenset(_NAMES.values())  # names of parts of the workers' time that do not belong to one operator
AROUND: Part = ("around", ())
_ONCE = ("import", "compile")  # work that each process does once
STALLED = 0.1  # share of the time, 0 to 1; a trainer that waits less is not limited by loading data
_BUSY = 0.75  # a worker, or all cores, count as busy from this share of the wall time on


@dataclass(slots=True)
class Spent:
    """Wall seconds and CPU seconds."""

    wall: float = 0.0
    cpu: float = 0.0


@dataclass
class TaskTime:
    """The times of a task, measured where it runs; plain data.

    Args:
        parts: one entry per part of the work, with wall seconds and CPU seconds.
        began: start time by the clock of its process.
        took: wall seconds. ``crowded`` is the part of them in which the task waited for a core.
        process, thread: the ids of the process and thread that ran it.
        ends: the first and last row that the task read, if it did and there is a recording.
    """

    parts: list[tuple[Part, float, float]] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)
    took: float = 0.0
    crowded: float = 0.0
    process: int = 0
    thread: int = 0
    ends: Ends = ()


@dataclass(frozen=True)
class Line:
    """One line of the report of the workers' time: a part, or a chain of fused operators with the share of each."""

    label: str
    seconds: float
    shares: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        reported = ", ".join(f"{label} {share:.0%}" for label, share in self.shares.items())
        return f"{self.label}: {reported}" if reported else self.label


@dataclass(frozen=True)
class Span:
    """A task that ended.

    Args:
        began, took, process, thread: as in ``TaskTime``.
        parts: the parts of the work in order, with wall seconds and CPU seconds.
        ends: the first and last row that the task read.
    """

    began: float
    took: float
    process: int
    thread: int
    parts: tuple[tuple[Part, float, float], ...]
    ends: Ends


@dataclass(frozen=True)
class TrainerWait:
    """A time in which the trainer waited.

    Args:
        asked, arrived: start and end of the wait.
        ends: the first and last row of the batch that arrived.
    """

    asked: float
    arrived: float
    ends: Ends


class Recording:
    """The last tasks and waits, for a trace. They are stored as bytes, which the garbage collector does not scan.

    Args:
        most: maximum number of tasks, and of waits.
    """

    def __init__(self, most: int) -> None:
        self._tasks, self._waits = deque[bytes](maxlen=most), deque[bytes](maxlen=most)
        self._numbers: dict[Part, int] = {}
        self.handed: Ends = ()  # first and last row of the next batch to deliver

    def task(self, task: TaskTime) -> None:
        """Record a task that ended."""
        numbers = self._numbers
        figures: list[float] = [task.began, task.took, task.process, task.thread, len(task.ends), *task.ends]
        for part, wall, cpu in task.parts:
            number = numbers.get(part)
            figures += (numbers.setdefault(part, len(numbers)) if number is None else number), wall, cpu
        self._tasks.append(pack(f"{len(figures)}d", *figures))

    def wait(self, asked: float, now: float) -> None:
        """Record that the trainer waited for the current batch."""
        ends = self.handed
        self.handed = ()
        self._waits.append(pack(f"{2 + len(ends)}d", asked, now, *ends))

    def tasks(self) -> list[Span]:
        """Return the recorded tasks in the order in which they ended."""
        parts = list(self._numbers)  # includes all parts of these tasks
        spans = []
        for began, took, process, thread, size, *rest in _unpacked(self._tasks):
            ends, reported = tuple(map(int, rest[: int(size)])), iter(rest[int(size) :])
            spent = tuple(
                (parts[int(number)], wall, cpu) for number, wall, cpu in zip(reported, reported, reported, strict=True)
            )
            spans.append(Span(began, took, int(process), int(thread), spent, ends))  # type: ignore[arg-type]
        return spans

    def waits(self) -> list[TrainerWait]:
        """Return the recorded waits in order."""
        return [TrainerWait(a, b, tuple(map(int, ends))) for a, b, *ends in _unpacked(self._waits)]  # type: ignore[arg-type]


def _unpacked(packed: deque[bytes]) -> Iterator[tuple[float, ...]]:
    return (unpack(f"{len(each) // 8}d", each) for each in packed.copy())  # copied, as tasks are added concurrently


@dataclass
class Timeline:
    """The times of one loader, in seconds.

    Args:
        parts: times of the workers in tasks that have ended.
        capacity: wall time multiplied by the number of workers.
        elapsed: wall time between the first and the last ``next()``.
        waited: the part of ``elapsed`` inside ``next()``.
        start: the part of ``elapsed`` before an iteration's first task, without ``compiling``, the time to make plans.
        crowded: seconds in which tasks waited for a core.
        own: CPU seconds of the loader's thread while the trainer waits for a delivery.
        lanes: the current number of workers.
        recording: the recording for a trace; None if there is no trace.
        asked: when the trainer requested the next delivery, or received the last one.
        asking: True while the trainer waits for a delivery.
        running: True during an iteration.
    """

    parts: dict[Part, Spent] = field(default_factory=dict)
    capacity: float = 0.0
    elapsed: float = 0.0
    waited: float = 0.0
    start: float = 0.0
    compiling: float = 0.0
    crowded: float = 0.0
    own: float = 0.0
    lanes: float = 1.0
    recording: Recording | None = None
    asked: float = 0.0
    asking: bool = False
    running: bool = False
    _delivered_at: float = 0.0
    _compiled: float | None = None  # ``compiling`` before this iteration; None once ``start`` includes it
    _began: float | None = None  # start time of the iteration's first task
    _every: int = 1  # measure the thread's CPU time in one delivery of this many
    _until_measured: int = 0  # number of deliveries until the next one that is measured
    _worked: float | None = None  # CPU seconds of the thread at the request of a delivery that is measured

    # ---- events, with the time of any clock --------------------------------------------------------------------------

    def begin(self, now: float, lanes: float, every: int = 1) -> None:
        """Start an iteration with ``lanes`` workers: the trainer requests its first delivery.

        Args:
            every: measure ``own`` in one delivery of this many, since that takes as long as delivering a single row.
        """
        self.lanes, self.running = lanes, True
        self._delivered_at = now
        self._compiled, self._began = self.compiling, None
        self._every = self._until_measured = every
        self.ask(now)

    def ask(self, now: float) -> None:
        """Record that the trainer requests the next delivery."""
        self.asked, self.asking = now, True
        self._until_measured -= 1
        if not self._until_measured:
            self._until_measured, self._worked = self._every, time.thread_time()

    def so_far(self, now: float) -> tuple[float, float]:
        """Return ``elapsed`` and ``waited`` up to now, including the delivery in progress."""
        if not self.running:
            return self.elapsed, self.waited
        return self.elapsed + now - self._delivered_at, self.waited + (now - self.asked if self.asking else 0.0)

    def give(self, now: float) -> None:
        """Record that the trainer has received a delivery or the end."""
        passed = now - self._delivered_at
        if (recording := self.recording) is not None:
            recording.wait(self.asked, now)
        self.waited += now - self.asked
        self.elapsed += passed
        self.capacity += passed * self.lanes
        if self._compiled is not None:
            passed = min(self._began or now, now) - self.asked - (self.compiling - self._compiled)
            self.start, self._compiled = self.start + max(passed, 0.0), None
        self.asked, self.asking = now, False
        self._delivered_at = now
        if self._worked is not None:
            self.own += (time.thread_time() - self._worked) * self._every
            self._worked = None

    def add(self, task: TaskTime, extra: bool = False) -> None:
        """Add a task that has ended. ``extra``: if it ran in this process, it was not run by a worker."""
        if extra and task.process == os.getpid():
            self.capacity += task.took
        self._began = self._began or task.began
        self.crowded += task.crowded
        for part, wall, cpu in task.parts:
            spent = self.parts.get(part)
            if spent is None:
                self.parts[part] = Spent(wall, cpu)
            else:
                spent.wall += wall
                spent.cpu += cpu
        if (recording := self.recording) is not None:
            recording.task(task)

    # ---- reports -----------------------------------------------------------------------------------------------------

    def rate(self, rows: float) -> float:
        """Return rows per second for ``rows`` delivered rows."""
        return rows / self.elapsed if self.elapsed else 0.0

    def task_cpu(self) -> tuple[float, float]:
        """Return the CPU seconds of operators and reading, and those of gathering rows and converting batches."""
        work = around = 0.0
        for (kind, _), spent in list(self.parts.items()):  # a copy, since tasks may be added concurrently
            if kind in ("read", "operator"):
                work += spent.cpu
            elif kind in ("gather", "convert"):
                around += spent.cpu
        return work, around

    @property
    def trainer(self) -> float:
        """Wall seconds between deliveries."""
        return max(self.elapsed - self.waited, 0.0)

    @property
    def stall(self) -> float:
        """The share of the wall time in which the trainer waited, 0 to 1."""
        return min(self.waited / self.elapsed, 1.0) if self.elapsed else 0.0

    def seconds(self, operator: int) -> float:
        """Return the wall seconds of an operator, including all seconds of fused chains with it."""
        parts = list(self.parts.items())
        return sum(spent.wall for (_, operators), spent in parts if operator in operators)

    def loader(self) -> dict[str, float]:
        """Return the loader's time by activity: the parts of ``elapsed``."""
        data = max(self.waited - self.start - self.compiling, 0.0)
        return {START: self.start, "compiling": self.compiling, DATA: data, TRAINER: self.trainer}

    def workers(self, labels: Mapping[int, str], weights: Mapping[int, float], inline: bool) -> list[Line]:
        """Return the workers' time by activity, longest first: the parts of ``capacity``.

        Args:
            labels: labels of the operators by ordinal.
            weights: times of operators that ran fused, as measured separately.
            inline: True if the loader's thread is the only worker.
        """
        lines = [_line(part, spent.wall, labels, weights) for part, spent in self.parts.items()]
        lines.sort(key=lambda line: -line.seconds)
        left = max(self.capacity - sum(line.seconds for line in lines), 0.0)
        if inline:
            trainer = min(self.trainer, left)
            return [*lines, Line(TRAINER, trainer), Line("between tasks", left - trainer)]
        return [*lines, Line(IDLE, left)]

    def operators(self, lines: Iterable[Line], labels: Mapping[int, str]) -> dict[str, float]:
        """Return the seconds of each operator by label, longest first; a chain without shares counts as one."""
        mine = {name_of(part, labels) for part in self.parts if part[1]}
        seconds: dict[str, float] = {}
        for line in lines:
            if line.label in mine:
                for label, share in (line.shares or {line.label: 1.0}).items():
                    seconds[label] = seconds.get(label, 0.0) + share * line.seconds
        return dict(sorted(seconds.items(), key=lambda item: -item[1]))

    def bottleneck(self, labels: Mapping[int, str], cores: int, filling: bool = False) -> tuple[str, str]:
        """Return what limits the run, and why.

        Args:
            cores: number of cores of this machine.
            filling: True if rows were written to a cache for later epochs.
        """
        if not self.elapsed or not self.parts:
            return "none measured", ""
        if self.stall <= STALLED:
            return TRAINER, "batches are ready before it requests them"
        if self.start + self.compiling > self.elapsed / 2:
            return START, f"{self.start + self.compiling:.2f} of {self.elapsed:.2f} s passed before the first task"
        part, most = max(self.parts.items(), key=lambda item: item[1].wall)
        workers = self.capacity / self.elapsed
        share, own = most.wall / self.capacity, self.own
        if part[0] in _ONCE:  # an import may run in the loader's thread, and other workers wait for it
            share, own = most.wall / self.elapsed, self.own - most.wall
        if workers > 1 and own / self.elapsed > max(_BUSY, share):
            return "the loader's thread", "it cuts and delivers all batches in one thread"
        why = self._why(part[0], most, min(workers, cores), cores)
        return name_of(part, labels), f"{why}; cache() is cold: later epochs do without it" if filling else why

    def _why(self, kind: Kind, most: Spent, workers: float, cores: int) -> str:
        if kind in _ONCE:
            return "once in each process, in the first tasks: nothing in a longer run"
        cpu = sum(spent.cpu for spent in self.parts.values())
        wanted = 1 + self.crowded / cpu if cpu else 1.0  # CPU time that tasks needed, relative to what they had
        busy = cpu * wanted / self.elapsed
        reported = f"{cpu / self.elapsed:.1f} of {cores} core(s) busy"
        if self.crowded > max(cpu, self.elapsed) / 4:
            reported += "; other programs have the cores"
        elif busy >= _BUSY * cores:
            reported += "; more cores would help"
        if most.cpu * wanted >= _BUSY * most.wall or busy >= _BUSY * workers:
            return reported
        if busy >= _BUSY:
            return f"workers take turns with the GIL, processes would help; {reported}"
        if kind not in ("read", "operator"):
            return reported
        return f"it waits for storage, a network or a lock, more workers would help; {reported}"


def name_of(part: Part, labels: Mapping[int, str]) -> str:
    """Return the name of a part: the labels of its operators, or the kind of work if it belongs to no operator."""
    kind, operators = part
    return " -> ".join(labels.get(i, str(i)) for i in operators) if operators else _NAMES[kind]


def _line(part: Part, seconds: float, labels: Mapping[int, str], weights: Mapping[int, float]) -> Line:
    _, operators = part
    whole = math.fsum(weights.get(i, 0.0) for i in operators)
    several = len(operators) > 1 and whole > 0
    shares = {labels.get(i, str(i)): weights.get(i, 0.0) / whole for i in operators} if several else {}
    return Line(name_of(part, labels), seconds, shares)
