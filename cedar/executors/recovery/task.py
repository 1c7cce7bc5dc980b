"""Task: one piece of work through all its attempts, and what they tell of the row that ends them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeAlias

from cedar.executors.recovery.trial import Verdict
from cedar.operators.marks import READING, BadRow, Mark, Marks, SlotAddress, SlotReading
from cedar.tasks.chain import Program, Result

Submit: TypeAlias = "Callable[..., Future[Result]]"
_SAME = 6  # deaths at the same place, where no row can be told from others there
_TRIALS = 5  # without a result, one after the other


@dataclass(frozen=True)
class Work:
    """What a task does, and how it is given to an executor.

    Args:
        program: that it runs.
        send: calls ``submit`` with it, once more each time it is called; the marks go into the task's ``Env``.
        reads: a URL or another name of what it reads; empty where it works on rows that are here.
        limits: seconds that calls of its functions may take, those that have a limit.
        fine: rows are marked from the first attempt on.
        most: rows that may be found guilty before it is given up; None is any number.
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
        """What of it was at work."""
        if mark is None:
            return self.label
        if mark.operator == READING:
            return f"reading {self.reads}" if self.reads and not mark.rows else "reading"
        steps = (*self.program.steps, *(self.program.written or ()))
        return next((step.label for step in steps if mark.operator in step.operators and step.label), self.label)


class Task(Future[Result]):
    """The future that the caller waits for, over all attempts; the first answer counts, others are dropped.

    The first attempt notes operators and blocks, later ones rows. Where one of these ends at a row, that row is a
    suspect: the next attempt is a trial (see ``trial``), and what it finds guilty is left out from then on.
    """

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work = work
        self.attempt: Future[Any] | None = None
        self.place: SlotAddress | None = None
        self.killed = 0.0  # when this attempt's process was ended because a row took too long
        self.ended = ""  # why it was ended, where that is no row's fault
        self.silent = ""  # why it was ended, where it did not get on
        self.sent = 0.0  # when this attempt was
        self.lost = 0.0  # when it was last found to be lost
        self.deaths = 0
        self.elsewhere = False  # on a worker of this machine, where marks can be seen
        self.acquitted = 0  # trials that found nobody guilty
        self.suspect: Mark | None = None
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

    @property
    def apart(self) -> bool:
        """The next attempt needs a process that has done nothing else: a trial, or after one that found nobody."""
        return self.suspect is not None or self.acquitted > 0

    def marks(self, patience: float = 0.0, fine: bool = False) -> Marks | None:
        """For the next attempt, in its slot; it marks rows where somebody looks whether they get on (``patience``)."""
        self._fine = fine or self.work.fine or self.deaths > 0 or patience > 0
        if self.place is None:
            self.suspect = None
            return None
        return Marks(self.place, self._fine, self._divided, self._bad, self.suspect, patience)

    def learn(self, seen: SlotReading | None, how: str, known: Mapping[Mark, BadRow]) -> BadRow | None:
        """An attempt was lost: what its mark tells; the row if it is clear already that it ends every process.

        Args:
            seen: the mark that the attempt left, if any.
            how: its process ended.
            known: rows found guilty in other tasks, by the row at hand when their processes died.
        """
        self.deaths += 1
        if self.ended or self.suspect is not None:  # the latter: of a trial, which begins anew
            return None
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
        if not mark.rows or (mark in self._divided):
            return None
        if mark.rows > 1 and mark.divisible:
            self.suspect = mark if again else None
        elif self._fine and mark in known and known[mark] not in self._bad:
            return self._give_up(known[mark])
        elif self._fine:  # a first attempt marks no row, but that of a block of one
            self.suspect = mark
        return None

    def judged(self, verdict: Verdict) -> BadRow | None:
        """A trial is over: the row that it found guilty."""
        suspect, self.suspect, self._last, self._same = self.suspect, None, None, 0
        if verdict.divide is not None and verdict.divide not in self._divided:
            self._divided += (verdict.divide,)
        if verdict.bad is None:
            self.acquitted += 1
            return None
        if suspect is not None and suspect.rows > 1 and suspect.divisible and suspect not in self._divided:
            self._divided += (suspect,)
        return self._give_up(verdict.bad)

    def _give_up(self, row: BadRow) -> BadRow:
        self._bad += (row,)
        self._last, self._same, self.acquitted = None, 0, 0
        return row

    @property
    def hopeless(self) -> bool:
        """Workers die at one place, and no row there can be told from the others; or trial after trial finds nobody."""
        many = self.work.most is not None and len(self._bad) > self.work.most
        return many or self._same >= _SAME or self.acquitted >= _TRIALS

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
