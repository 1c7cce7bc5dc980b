"""Task: one piece of work through all its attempts, and what they tell of the row that ends them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeAlias

from cedar.operators.marks import READING, BadRow, Mark, Marks, SlotAddress, SlotReading, Trial
from cedar.tasks.chain import Program, Result

Submit: TypeAlias = "Callable[..., Future[Result]]"
_SAME = 6  # deaths at the same place, where no row can be known from others there
_TRIALS = 5  # without a result, one after the other
_TIMES = 2  # processes that a row or a block ends before it is to blame


@dataclass(frozen=True)
class TaskWork:
    """What a task does, and how it is given to an executor.

    Args:
        program: that it runs.
        send: calls ``submit`` with it, once more each time it is called; the marks go into the task's ``Env``.
        reads: a URL or another name of what it reads; empty if it works on rows that are here.
        limits: seconds that calls of its functions may take, those that have a limit.
        fine: rows are marked from the first attempt on.
        most: rows that may be to blame before it is given up; None is any number.
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


class SupervisedTask(Future[Result]):
    """The future that the caller waits for, over all attempts; the first answer counts, others are dropped.

    The first attempt notes operators and blocks, later ones rows. Where one of these ends at a row, the next attempts
    are trials in fresh processes: the row alone, and then its block. What ends two of them is left out from then on.
    """

    def __init__(self, work: TaskWork) -> None:
        super().__init__()
        self.work = work
        self.attempt: Future[Any] | None = None
        self.place: SlotAddress | None = None
        self.killed = 0.0  # when this attempt's process was ended because a row took too long
        self.ended = ""  # why it was ended, where that is not a row's fault
        self.silent = ""  # why it was ended, where it did not make progress
        self.sent = 0.0  # when this attempt was
        self.lost = 0.0  # when it was last found to be lost
        self.deaths = 0
        self.elsewhere = False  # on a worker of this machine, where marks can be seen
        self.acquitted = 0  # trials that found nothing to blame
        self.trial: Trial | None = None  # what the next attempt is, in the place of the task's work
        self._fell = 0  # processes that it ended
        self._group: Mark | None = None  # the rows that the suspect is one of, where they went together
        self._fine = False
        self._unseen = 0
        self._same = 0
        self._last: Mark | None = None
        self._divided: tuple[Mark, ...] = ()
        self._bad: tuple[BadRow, ...] = ()

    def cancel(self) -> bool:
        """Nothing waits for it any more."""
        done = super().cancel()
        if done and self.attempt is not None:
            self.attempt.cancel()
        return done

    @property
    def apart(self) -> bool:
        """The next attempt needs a fresh process: a trial, or after one that found nothing to blame."""
        return self.trial is not None or self.acquitted > 0

    def marks(self, patience: float = 0.0, fine: bool = False) -> Marks | None:
        """For the next attempt, in its slot; it marks rows where a caller checks whether they make progress
        (``patience``).
        """
        self._fine = fine or self.work.fine or self.deaths > 0 or patience > 0
        if self.place is None:
            self.trial = None
            return None
        return Marks(self.place, self._fine, self._divided, self._bad, self.trial)

    def learn(self, seen: SlotReading | None, how: str, known: Mapping[Mark, BadRow]) -> BadRow | None:
        """An attempt was lost: what its mark tells; the row or block if it is clear that it ends every process.

        Args:
            seen: the mark that the attempt left, if any.
            how: its process ended.
            known: rows to blame in other tasks, by their marks.
        """
        self.deaths += self.trial is None or seen is None or bool(self.ended)
        if self.ended:
            return None
        if seen is not None and self.killed and seen.overdue(self.killed):
            return self._give_up(BadRow(seen.mark, f"no result within timeout={seen.limit:g} s", hung=True))
        if self.trial is not None:
            return self._tried(self.trial, seen, how)
        if seen is None:
            self._unseen += 1
            self._last = None
            return None
        mark = seen.mark
        self._same = self._same + 1 if mark == self._last else 1
        again, self._last = mark == self._last, mark
        if any(mark == entry.mark for entry in self._bad):  # it was not tried, and yet the process died
            return None
        if not mark.rows or (mark in self._divided):
            return None
        if mark.rows > 1 and mark.divisible:
            self._group = mark if again else None
            self.trial = Trial(mark, apiece=True) if again else None
        elif self._fine and mark in known and known[mark] not in self._bad:
            return self._give_up(known[mark])
        elif self._fine:  # a first attempt marks no row, but that of a block of one
            self.trial = Trial(mark, alone=mark.rows == 1)
        return None

    def _tried(self, trial: Trial, seen: SlotReading | None, how: str) -> BadRow | None:
        """A trial was lost."""
        if seen is None:
            return None
        mark, suspect = seen.mark, trial.suspect
        if not mark.rows or (suspect.rows > 1 and not suspect.divisible and mark != suspect):  # it died elsewhere
            self._acquit()
            return None
        if trial.apiece and not trial.alone:
            one = mark.rows == 1 and mark.operator == suspect.operator
            self._try(Trial(mark, alone=True, apiece=True) if one else Trial(suspect))
            return None
        self._fell += 1
        if self._fell < _TIMES:
            return None
        block = not trial.alone and (suspect.rows == 1 or suspect.divisible)
        row = mark if trial.alone and mark.rows == 1 else suspect
        reported = self.silent or f"{how}, in {_TIMES} fresh processes"
        return self._give_up(BadRow(row, reported, bool(self.silent), block))

    def survived(self) -> None:
        """The process of a trial lived: neither the row is to blame alone, nor, at last, its block."""
        trial = self.trial
        assert trial is not None
        if trial.alone:
            self._try(Trial(trial.suspect))
            return
        if trial.apiece:  # one by one, the rows end no process
            self._divided += (trial.suspect,)
        self._acquit()

    def _try(self, trial: Trial | None) -> None:
        self.trial, self._fell = trial, 0

    def _acquit(self) -> None:
        self.acquitted += 1
        self._last, self._same, self._group = None, 0, None
        self._try(None)

    def _give_up(self, bad: BadRow) -> BadRow:
        self._bad += (bad,)
        if self._group is not None and self._group not in self._divided:
            self._divided += (self._group,)
        self._acquit()
        self.acquitted = 0
        return bad

    @property
    def hopeless(self) -> bool:
        """Workers die where no row can be known from the others, or trial after trial finds nothing."""
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
