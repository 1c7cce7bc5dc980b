"""Deaths: the worker processes that a loader lost, what each was at, and what became of its task."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Literal, TypeAlias

from cedar.core.errors import RowRef
from cedar.operators.marks import BadRow, Mark

_KEPT = 1000
Then: TypeAlias = Literal["run again", "tried", "bad row", "bad block", "given up"]


@dataclass(frozen=True)
class Death:
    """One worker process that ended while it had a task.

    Args:
        how: exit code or signal, and out of memory where the kernel says so.
        operators: of the task, or what of them was at work.
        row: the current row, the first of several (``rows``), or None if unknown.
        rows: how many rows it may have been.
        then: the task was run again; the process was a trial; the row or its block ended fresh processes, and is a bad
            row or block; or the task was given up.
    """

    how: str
    operators: str
    row: RowRef | None = None
    rows: int = 0
    then: Then = "run again"

    def describe(self, row: RowRef | None) -> str:
        """In words; ``row`` is the current one, named for people."""
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
    """Those of one loader; ``count`` counts all, ``latest`` holds the last thousand.

    ``recoveries`` are the seconds from when a task was found lost until it was done, of the last thousand.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0
        self.latest: deque[Death] = deque(maxlen=_KEPT)
        self.recoveries: deque[float] = deque(maxlen=_KEPT)
        self.in_a_row = 0  # since a task was done
        self.known: dict[Mark, BadRow] = {}  # rows to blame: one death more is enough

    def add(self, death: Death, ended: bool = True) -> None:
        """One more; where no process ended, it says nothing of how others fare."""
        with self._lock:
            self.count += 1
            self.in_a_row += ended
            self.latest.append(death)

    def done(self, lost: float) -> None:
        """A task was done, which was lost at this time (``time.monotonic``), or never: 0."""
        self.in_a_row = 0
        if lost:
            self.recoveries.append(time.monotonic() - lost)
