"""Deaths: a record of the workers that a loader lost, what each was running, and what happened to its task."""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import BrokenExecutor, CancelledError
from concurrent.futures import thread as pools
from dataclasses import dataclass
from typing import Literal, TypeAlias

from cedar.core.errors import RowRef
from cedar.operators.marks import BadRow, Mark

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
    ends = pools._shutdown or not threading.main_thread().is_alive()  # ``_shutdown`` is set slightly earlier
    if threading.current_thread().daemon and ends:
        threading.Event().wait()
