"""Task: a task with all its attempts, the search for a row that crashes its workers, and a record of lost workers."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor, CancelledError, Future
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from cedar.core.errors import RowRef
from cedar.executors.base import TaskExecutor
from cedar.operators.marks import READING, BadRow, Mark, Marks, SlotAddress, SlotReading, Trial
from cedar.tasks.chain import Program, Result
from cedar.tasks.reading import SplitReader

_MAX_SAME_DEATHS = 6  # maximum consecutive deaths at the same mark, if they reveal no single row
_MAX_TRIALS = 5  # maximum consecutive series of trials that find no row or block to blame
_CRASHES_TO_BLAME = 2  # number of fresh processes that a row or block must crash to be considered bad


@dataclass(frozen=True)
class Submit:
    """Submits a call to an executor; ``first``: ahead of all queued calls."""

    executor: TaskExecutor
    first: bool = False

    def __call__(self, fn: Callable[..., Any], *args: Any) -> Future[Any]:
        return (self.executor.submit_first if self.first else self.executor.submit)(fn, *args)


@dataclass(frozen=True)
class TaskWork:
    """The work of a task, and how to submit it.

    Args:
        program: the steps that the task runs.
        send: submits the task by the given ``submit``, with the given marks in its ``Env``; called once per attempt.
        reads: URL or other name of what the task reads; empty if its rows are sent with the call.
        limits: seconds per call, of the functions that have a time limit.
        fine: mark each row from the first attempt on.
        most: maximum number of bad rows before the task fails; None means no limit.
    """

    program: Program
    send: Callable[[Submit, Marks | None], Future[Result]]
    reads: str = ""
    limits: tuple[float, ...] = ()
    fine: bool = False
    most: int | None = None

    @property
    def label(self) -> str:
        return self.program.label or ("reading a split" if self.reads else "a batch")

    def named(self, mark: Mark | None) -> str:
        """Return the label of the operator that a mark refers to."""
        if mark is None:
            return self.label
        if mark.operator == READING:
            return f"reading {self.reads}" if self.reads and not mark.rows else "reading"
        steps = (*self.program.steps, *(self.program.written or ()))
        return next((step.label for step in steps if mark.operator in step.operators and step.label), self.label)


class SupervisedTask(Future[Result]):
    """The future that the caller waits for, across all attempts. Only the first result counts.

    In the first attempt, the worker marks the operator and block that it works on; in later attempts, it marks rows. If
    a later attempt dies at a row, trials in fresh processes run the row by itself, and then its block. A row or block
    that crashes two fresh processes is bad, and is left out of the next attempt.
    """

    def __init__(self, work: TaskWork) -> None:
        super().__init__()
        self.work = work
        self.attempt: Future[Any] | None = None
        self.place: SlotAddress | None = None
        self.killed = 0.0  # time at which this attempt's worker was killed, because a call exceeded its time limit
        self.ended = ""  # why this attempt's worker was killed, if that was not caused by a row
        self.silent = ""  # why this attempt's worker was killed, if it made no progress
        self.sent = 0.0  # time at which this attempt was submitted
        self.lost = 0.0  # time at which the latest loss of the task was detected
        self.deaths = 0
        self.on_this_machine = False  # whether to run the next attempt on this machine, where marks are visible
        self.fruitless_trials = 0  # consecutive series of trials that found no row or block to blame
        self.trial: Trial | None = None  # the trial that the next attempt runs instead of the task
        self._crashes = 0  # number of processes that the trial has crashed
        self._group: Mark | None = None  # rows passed in one call, one of which may crash workers
        self._fine = False
        self.unmarked = 0  # number of lost attempts that left no mark on the board
        self._same_mark = 0
        self._last: Mark | None = None
        self._divided: tuple[Mark, ...] = ()
        self._bad: tuple[BadRow, ...] = ()

    def cancel(self) -> bool:
        """Cancel the task and its current attempt."""
        done = super().cancel()
        if done and self.attempt is not None:
            self.attempt.cancel()
        return done

    @property
    def in_fresh_process(self) -> bool:
        """Whether the next attempt needs a fresh process, because it is a trial, or because trials found no cause."""
        return self.trial is not None or self.fruitless_trials > 0

    def marks(self, patience: float = 0.0, fine: bool = False) -> Marks | None:
        """Return the marks for the next attempt. Retries, and attempts with a limit ``patience``, mark each row."""
        self._fine = fine or self.work.fine or self.deaths > 0 or patience > 0
        if self.place is None:
            self.trial = None
            return None
        return Marks(self.place, self._fine, self._divided, self._bad, self.trial)

    def learn(self, seen: SlotReading | None, how: str, known: Mapping[Mark, BadRow]) -> BadRow | None:
        """Evaluate a lost attempt: plan a trial if it may help, and return a row or block that is now known to be bad.

        Args:
            seen: the last mark of the attempt; None if it left none.
            how: description of how the process ended.
            known: bad rows of other tasks, by mark.
        """
        self.deaths += self.trial is None or seen is None or bool(self.ended)
        if self.ended:
            return None
        if seen is not None and self.killed and seen.overdue(self.killed):
            return self._blame(BadRow(seen.mark, f"no result within timeout={seen.limit:g} s", hung=True))
        if self.trial is not None:
            return self._after_trial_death(self.trial, seen, how)
        if seen is None:
            self.unmarked += 1
            self._last = None
            return None
        mark = seen.mark
        self._same_mark = self._same_mark + 1 if mark == self._last else 1
        again, self._last = mark == self._last, mark
        if any(mark == entry.mark for entry in self._bad):  # the process died although the bad row was left out
            return None
        if not mark.rows or (mark in self._divided):
            return None
        if mark.rows > 1 and mark.divisible:
            self._group = mark if again else None
            self.trial = Trial(mark, apiece=True) if again else None
        elif self._fine and mark in known and known[mark] not in self._bad:
            return self._blame(known[mark])
        elif self._fine:  # otherwise, a mark identifies a row only if its block has one row
            self.trial = Trial(mark, alone=mark.rows == 1)
        return None

    def _after_trial_death(self, trial: Trial, seen: SlotReading | None, how: str) -> BadRow | None:
        """Evaluate a trial whose process died; return the row or block if it is now known to be bad."""
        if seen is None:
            return None
        mark, suspect = seen.mark, trial.suspect
        if not mark.rows or (suspect.rows > 1 and not suspect.divisible and mark != suspect):  # not at the suspect
            self._blame_nothing()
            return None
        if trial.apiece and not trial.alone:
            one = mark.rows == 1 and mark.operator == suspect.operator
            self._start_trial(Trial(mark, alone=True, apiece=True) if one else Trial(suspect))
            return None
        self._crashes += 1
        if self._crashes < _CRASHES_TO_BLAME:
            return None
        block = not trial.alone and (suspect.rows == 1 or suspect.divisible)
        row = mark if trial.alone and mark.rows == 1 else suspect
        reported = self.silent or f"{how}, in {_CRASHES_TO_BLAME} fresh processes"
        return self._blame(BadRow(row, reported, bool(self.silent), block))

    def survived(self) -> None:
        """Evaluate a trial whose process survived: next, try the row's block; if it was the block, stop the trials."""
        trial = self.trial
        assert trial is not None
        if trial.alone:
            self._start_trial(Trial(trial.suspect))
            return
        if trial.apiece:  # the rows crash no process if they are passed one by one, so do that from now on
            self._divided += (trial.suspect,)
        self._blame_nothing()

    def _start_trial(self, trial: Trial | None) -> None:
        self.trial, self._crashes = trial, 0

    def _blame_nothing(self) -> None:
        self.fruitless_trials += 1
        self._last, self._same_mark, self._group = None, 0, None
        self._start_trial(None)

    def _blame(self, bad: BadRow) -> BadRow:
        self._bad += (bad,)
        if self._group is not None and self._group not in self._divided:
            self._divided += (self._group,)
        self._blame_nothing()
        self.fruitless_trials = 0
        return bad

    @property
    def max_loss(self) -> bool:
        """Whether to give up, after too many bad rows, deaths at the same mark, or trials that found no cause."""
        many = self.work.most is not None and len(self._bad) > self.work.most
        return many or self._same_mark >= _MAX_SAME_DEATHS or self.fruitless_trials >= _MAX_TRIALS


def time_limits(program: Program, reader: SplitReader | None = None) -> tuple[float, ...]:
    """Return the time limits of the functions that a program and a reader call, in seconds."""
    steps = (*program.steps, *(program.written or ()), *(() if reader is None else reader.steps))
    limits = [part.kernel.timeout for step in steps for part in (step.parts or (step,))]
    return tuple(limit for limit in limits if limit is not None)


# ---- lost workers ----------------------------------------------------------------------------------------------------


_MAX_KEPT = 1000
AfterDeath: TypeAlias = Literal["run again", "tried", "bad row", "bad block", "given up"]


@dataclass(frozen=True)
class Death:
    """One worker process that ended during a task.

    Args:
        how: exit code or signal, and whether the kernel reports that memory ran out.
        operators: label of the operator that was running; if unknown, label of all operators of the task.
        row: the row that was being processed, or the first of ``rows``; None if unknown.
        rows: number of rows that may have been in process at that time.
        then: what happened next. "run again": the task was retried; "tried": the process was a trial; "bad row" or
            "bad block": the row or its block also crashed fresh workers; "given up": the run was stopped.
    """

    how: str
    operators: str
    row: RowRef | None = None
    rows: int = 0
    then: AfterDeath = "run again"

    def describe(self, row: RowRef | None) -> str:
        """Describe the death in one line; ``row`` is the row to name in it."""
        where = "" if row is None else f", {row}" if self.rows <= 1 else f", {row} ({self.rows:,} rows)"
        then = {
            "run again": "its task was run again", "tried": "it was on trial",
            "bad row": "the row is a bad row", "bad block": "its block is a bad block",
            "given up": "the run was stopped",
        }[self.then]  # fmt: skip
        return f"{self.how}, at {self.operators}{where}; {then}"

    def __str__(self) -> str:
        return self.describe(self.row)


class Deaths:
    """The deaths of one loader's workers: ``count`` is their number, and ``latest`` lists the last thousand.

    ``recoveries`` lists, for the last thousand recovered tasks, the seconds from detecting the loss to finishing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0
        self.latest: deque[Death] = deque(maxlen=_MAX_KEPT)
        self.recoveries: deque[float] = deque(maxlen=_MAX_KEPT)
        self.in_a_row = 0  # deaths since a task last finished
        self.known: dict[Mark, BadRow] = {}  # bad rows; if one crashes another task too, no further trials are needed

    def add(self, death: Death, ended: bool = True) -> None:
        """Record a death. ``in_a_row`` counts only deaths in which a process ended."""
        with self._lock:
            self.count += 1
            self.in_a_row += ended
            self.latest.append(death)

    def done(self, lost: float) -> None:
        """Record a finished task; ``lost`` is the ``time.monotonic()`` of its latest loss, 0 if it was never lost."""
        self.in_a_row = 0
        if lost:
            self.recoveries.append(time.monotonic() - lost)


# Names of the errors by which dask.distributed reports a lost worker; names avoid importing dask in this module.
_LOST = frozenset({"KilledWorker", "FutureCancelledError", "FuturesCancelledError", "CommClosedError"})


def is_lost(error: BaseException) -> bool:
    """Return whether an error means that a worker was lost, for any executor."""
    if isinstance(error, (BrokenExecutor, CancelledError)):
        return True
    return any(kind.__name__ in _LOST and kind.__module__.startswith("distributed") for kind in type(error).__mro__)


def block_daemon_at_exit() -> None:
    """Block a daemon thread while the interpreter shuts down, so that it ends without a traceback."""
    # Python sets this before it runs the hooks that cancel tasks, such as cedar's.
    if threading._SHUTTING_DOWN and threading.current_thread().daemon:  # type: ignore[attr-defined]
        threading.Event().wait()
