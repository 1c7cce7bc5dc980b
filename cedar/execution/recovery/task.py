"""Task: one piece of work through all its attempts, and what they tell of the row that ends them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeAlias

from cedar.execution.chain import Program, Result
from cedar.operators.marks import READING, BadRow, Mark, Marks, Place, Written

Submit: TypeAlias = "Callable[..., Future[Result]]"
_SAME = 6  # deaths at the same place, where no row can be told from others there


@dataclass(frozen=True)
class Work:
    """What a task does, and how it is given to an executor.

    Args:
        program: that it runs.
        send: calls ``submit`` with it, once more each time it is called; the marks go into the task's ``Env``.
        reads: a URL or another name of what it reads; empty where it works on rows that are here.
        limits: seconds that calls of its functions may take, those that have a limit.
    """

    program: Program
    send: Callable[[Submit, Marks | None], Future[Result]]
    reads: str = ""
    limits: tuple[float, ...] = ()

    @property
    def label(self) -> str:
        return self.program.label or ("reading a split" if self.reads else "a batch")

    def named(self, mark: Mark | None) -> str:
        """What of it was at work."""
        if mark is None:
            return self.label
        if mark.operator == READING:
            return f"reading {self.reads}" if self.reads and not mark.rows else "reading"
        steps = (*self.program.steps, *(self.program.written or ()))
        return next((step.label for step in steps if mark.operator in step.operators and step.label), self.label)


class Task(Future[Result]):
    """The future that the caller waits for, over all attempts; the first answer counts, others are dropped."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work = work
        self.attempt: Future[Result] | None = None
        self.place: Place | None = None
        self.killed = 0.0  # when this attempt's process was ended because a row took too long
        self.lost = 0.0  # when it was last found to be lost
        self.deaths = 0
        self.elsewhere = False  # on a worker of this machine, where marks can be seen
        self._fine = False
        self._unseen = 0
        self._same = 0
        self._last: Mark | None = None
        self._divided: tuple[Mark, ...] = ()
        self._bad: tuple[BadRow, ...] = ()

    def cancel(self) -> bool:
        """Nobody waits for it any more."""
        done = super().cancel()
        if done and self.attempt is not None:
            self.attempt.cancel()
        return done

    def marks(self) -> Marks | None:
        """For the next attempt, in its slot."""
        self._fine = self.deaths > 0
        return None if self.place is None else Marks(self.place, self._fine, self._divided, self._bad)

    def learn(self, seen: Written | None, how: str, known: set[Mark]) -> BadRow | None:
        """An attempt was lost: what its mark tells; the row if it is now clear that it ends every process.

        Args:
            seen: the mark that the attempt left, if any.
            how: its process ended.
            known: rows that ended processes in other tasks.
        """
        self.deaths += 1
        if seen is None:
            self._unseen += 1
            self._last = None
            return None
        mark = seen.mark
        self._same = self._same + 1 if mark == self._last else 1
        again, self._last = mark == self._last, mark
        if any(mark == entry.mark for entry in self._bad):  # it was not tried, and yet the process died
            return None
        if self.killed and seen.overdue(self.killed):
            return self._give_up(BadRow(mark, f"no result within timeout={seen.limit:g} s", hung=True))
        if mark.rows > 1 and mark.divisible:
            if again and mark not in self._divided:
                self._divided += (mark,)
                self._same = 0
            return None
        if not self._fine or not mark.rows:
            self._last = None if mark.rows else mark  # a first attempt marks no row, but that of a block of one
            return None
        if again or mark in known:
            return self._give_up(BadRow(mark, f"{how}, each time it was tried"))
        return None

    def _give_up(self, row: BadRow) -> BadRow:
        self._bad += (row,)
        self._last, self._same = None, 0
        return row

    @property
    def hopeless(self) -> bool:
        """Workers die at one place, and no row there can be told from the others."""
        return self._same >= _SAME

    @property
    def unseen(self) -> int:
        """Attempts that left no mark."""
        return self._unseen


def limits_of(program: Program, reader: Any = None) -> tuple[float, ...]:
    """The time limits of the functions of a program, and of what a reader runs."""
    programs = [program, *([reader.program] if hasattr(reader, "program") else [])]
    steps = [step for each in programs for step in (*each.steps, *(each.written or ()))]
    calls = [getattr(part.kernel, "call", None) for step in steps for part in (step.parts or (step,))]
    limits = [getattr(call, "timeout", None) for call in calls]
    return tuple(limit for limit in limits if limit is not None)
