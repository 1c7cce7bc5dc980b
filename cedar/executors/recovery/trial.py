"""Trial: the row at hand when a process died is tried, alone and then behind the rows before it.

A trial runs in a process that has done nothing else, and that forks a child for everything that it tries: each child is
as fresh, and may die. A row is blamed that ends a child by itself, or that makes the rows up to the death end one
where they do not without it.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from cedar.core.block import Block
from cedar.executors.processes import memory
from cedar.executors.worker.main import die_with_the_starting_thread
from cedar.operators.base import Env
from cedar.operators.marks import READING, BadRow, Mark, Marks, each_key
from cedar.tasks.chain import Step, Timing, run_steps
from cedar.tasks.code import Code
from cedar.tasks.reading import Reader, from_row, marked

Key: TypeAlias = "tuple[int, ...]"
Child: TypeAlias = "Callable[[Callable[[Env], Any]], Any]"
_OVER = b"the child came to its end"
_AFTERMATH = 32  # rows behind a suspect in which the damage that it does shows
_CONTROLS = 4  # groups of rows that are tried until one is innocent
_STAND_INS = 6  # rows that are tried in the place of another, one after the other
_PAUSES = (0.001, 0.02)  # seconds between two looks at a child, the first and the last


@dataclass(frozen=True)
class ChildDeath:
    """A child that died: how, and what it was at."""

    how: str
    mark: Mark | None
    hung: bool = False


@dataclass(frozen=True)
class Verdict:
    """What a trial found.

    Args:
        bad: the row that ends processes; None where none does.
        behind: how many rows later it does; 0 by itself.
        divide: rows that end a process together, and not one by one.
        deaths: what was spent.
    """

    bad: BadRow | None = None
    behind: int = 0
    divide: Mark | None = None
    deaths: tuple[ChildDeath, ...] = ()


class Rows:
    """The rows that enter a task's chain, as a trial sees them: in order, each by its key."""

    makes_items = False  # code of the user makes each row

    def keys(self, child: Child) -> list[list[Key]]:
        """Of each block; ``child`` runs what user code may be part of where it may die."""
        raise NotImplementedError

    def blocks(self, wanted: set[Key] | None, env: Env) -> Iterator[Block]:
        """The wanted rows, or all."""
        raise NotImplementedError


@dataclass(frozen=True)
class BlockRows(Rows):
    """Of a block that is there."""

    block: Block

    def keys(self, child: Child) -> list[list[Key]]:
        return [each_key(self.block.keys)]

    def blocks(self, wanted: set[Key] | None, env: Env) -> Iterator[Block]:
        yield from _some(self.block, wanted)


@dataclass(frozen=True)
class SplitRows(Rows):
    """Of a split, read as the pipeline has it."""

    reader: Reader
    split: Any
    lap: int
    first: int

    @property
    def _cuts(self) -> bool:
        """Any row can be read without the others."""
        return bool(getattr(self.reader.source, "cuts_splits", False))

    @property
    def makes_items(self) -> bool:  # type: ignore[override]
        return self._cuts and bool(getattr(self.reader.source, "per_row", False))

    def keys(self, child: Child) -> list[list[Key]]:
        if self._cuts:
            rows = range(max(self.first, self.split.start), self.split.stop)
            return [[(self.reader.ordinal, self.reader.file(self.split), row, -1, self.lap, 0) for row in rows]]
        keys: list[list[Key]] = child(lambda env: [each_key(block.keys) for block in self.blocks(None, env)])
        return keys

    def blocks(self, wanted: set[Key] | None, env: Env) -> Iterator[Block]:
        for split in self._splits(wanted):
            for block in marked(self.reader.blocks(split, self.lap), self.reader, split, self.first, env):
                yield from _some(from_row(block, self.first), wanted)

    def _splits(self, wanted: set[Key] | None) -> Iterator[Any]:
        if wanted is None or not self._cuts:
            yield self.split
            return
        rows = np.array(sorted(key[2] for key in wanted), dtype=np.int64)
        for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
            if len(run):
                start, stop = int(run[0]), int(run[-1]) + 1
                yield replace(self.split, start=start, stop=stop, rows=stop - start)


def _some(block: Block, wanted: set[Key] | None) -> Iterator[Block]:
    if wanted is None:
        yield block
        return
    slots = [slot for slot, key in enumerate(each_key(block.keys)) if key in wanted]
    if slots:
        yield block.take(np.array(slots, dtype=np.int64))


def tried(marks: Marks | None) -> bool:
    """A task with these marks is a trial."""
    return marks is not None and marks.suspect is not None


def try_shipped(code: Code, env: Env, block: Block) -> Verdict:
    """In the place of ``run_shipped``, where the marks name a suspect."""
    (program,) = code.load()
    return judge(program.steps, BlockRows(block), code.env(env))


def try_read(code: Code, env: Env, split: Any, lap: int, first: int) -> Verdict:
    """In the place of ``read_shipped``: nothing is taken from a cache, or put into one."""
    program, reader = code.load()
    plain, steps = _flat(reader)
    return judge((*steps, *program.steps), SplitRows(plain, split, lap, first), code.env(env))


def _flat(reader: Any) -> tuple[Reader, tuple[Step, ...]]:
    """The source of a reader, and the steps that it runs itself."""
    if hasattr(reader, "program"):  # of what cache() keeps
        plain, steps = _flat(reader.reader)
        return plain, (*steps, *reader.program.steps)
    if isinstance(reader, Reader):
        return reader, ()
    return reader.plain, tuple(reader.steps)


class _Inconclusive(Exception):
    """A child died where no row is at hand."""


def judge(steps: Sequence[Step], rows: Rows, env: Env) -> Verdict:
    """Whether the suspect of a task's marks ends processes, or a row before it, or none.

    Args:
        steps: the task's chain.
        rows: that enter it.
        env: of the task.
    """
    trial = _Trial(steps, rows, env)
    try:
        verdict = trial.verdict()
    except _Inconclusive:
        verdict = Verdict()
    return replace(verdict, deaths=tuple(trial.deaths))


class _Trial:
    def __init__(self, steps: Sequence[Step], rows: Rows, env: Env) -> None:
        marks = env.marks
        assert marks is not None
        assert marks.suspect is not None
        self.deaths: list[ChildDeath] = []
        self._suspect = marks.suspect
        self._marks, self._env, self._rows = marks, env, rows
        self._steps = _up_to(steps, marks.suspect.operator)
        self._apiece: int | None = None

    def verdict(self) -> Verdict:
        suspect = self._suspect
        if suspect.rows > 1:
            if suspect.divisible:
                self._apiece = suspect.operator
            fell = self._fall()
            if fell is None or fell.mark is None:
                return Verdict(divide=suspect if suspect.divisible and fell is None else None)
            if not suspect.divisible:
                return Verdict(_bad(fell, suspect, 0) if fell.mark == suspect else None)
            suspect = fell.mark
            if suspect.operator != self._suspect.operator or suspect.rows != 1:
                return Verdict()
        order, after = self._order(suspect)
        verdict = self._search(order, after) if order else None
        return verdict or Verdict(divide=self._suspect if self._suspect.divisible else None)

    def _search(self, order: list[Key], after: list[Key], innocent: Sequence[Key] = ()) -> Verdict | None:
        """The latest row of ``order``, from the suspect backwards, that ends a child alone or with those after it.

        Rows behind the suspect run at the end of whatever is tried, and innocent ones behind these, so that damage
        shows there without the row that it showed at first: that one may have been no more than in its way. Where these
        end a child themselves, the row among them that does is the first to be found.
        """
        if (fell := self._fall({order[0]})) is not None:
            return Verdict(_bad(fell, self._mark_of(order[0], fell), 0))
        tail = after[:_AFTERMATH]
        innocent = innocent or self._innocent(order[_AFTERMATH:], after[_AFTERMATH:])
        more = set(innocent)
        if tail and (fell := self._fall(set(tail), more)) is not None:
            key = (0, 0, -1) if fell.mark is None else fell.mark.key[:3]
            at = next((i for i, each in enumerate(tail) if each[:3] == key), len(tail) - 1)
            return self._search(tail[at::-1], after[at + 1 :], innocent)
        order = [key for key in order if key not in tail]
        run = shortest(lambda m: self._fall({*order[:m], *tail}, more) is not None, len(order))
        if run is None:
            return None
        fell, together = self.deaths[-1], [*order[run - 1 :: -1], *tail]  # as they were worked on
        guilty = self._irreplaceable(together, more, [key for key in innocent if key not in order[:run]])
        if guilty is None:
            return None
        shown = together.index(fell.mark.key) if fell.mark is not None and fell.mark.key in together else run - 1
        behind = max(shown - together.index(guilty), 0)
        return Verdict(self._blamed([set(together), more], guilty, fell, behind), behind)

    def _innocent(self, earlier: list[Key], later: list[Key]) -> list[Key]:
        """Rows that do no damage: with as many behind them, where it would show, they live.

        Args:
            earlier, later: rows away from where a child died, on both sides.
        """
        span, tries = 2 * _AFTERMATH, _CONTROLS
        for rows in (earlier, later[::-1]):
            for start in range(0, min(len(rows), tries * span), span):
                group, tries = sorted(rows[start : start + span]), tries - 1
                if self._fall(set(group)) is None:
                    return group[: len(group) // 2]
        return []

    def _irreplaceable(self, together: list[Key], more: set[Key], innocent: list[Key]) -> Key | None:
        """The row that innocent ones cannot stand in for, of rows that end a child together.

        Where damage shows may hang on which rows come before it, and how many, as the places of a heap do. Then the
        first of the fewest rows that end a child is no more than one of them, and some other row does as well.

        Args:
            together: the rows, in order; without the first they end no child.
            more: rows that run behind them.
            innocent: rows that do no damage.
        """

        def dies(without: list[Key]) -> bool:
            left, count = {*together} - {*without}, len(without)
            choices = range(min(len(innocent) - count + 1, _STAND_INS))
            return any(self._fall({*innocent[at : at + count]}, left, more) is not None for at in choices)

        first, *rest = together
        if not innocent or not dies([first]):
            return first
        while len(rest) > 1:
            half = rest[: min(len(rest) // 2, len(innocent))]
            rest = rest[len(half) :] if dies(half) else half
        return rest[0] if rest and not dies(rest) else None

    def _mark_of(self, key: Key, fell: ChildDeath) -> Mark:
        """Of a row that ends a child alone: where it did, or where it was suspected."""
        mark = fell.mark
        if mark is not None and mark.rows == 1 and mark.operator == self._suspect.operator and mark.key[:3] == key[:3]:
            return mark
        return Mark(self._suspect.operator, 1, key)

    def _order(self, suspect: Mark) -> tuple[list[Key], list[Key]]:
        """The rows by how late they were worked on before the suspect, itself first; and those behind it in its block.

        Where its operator comes behind others, those worked on the latter before.
        """
        blocks = self._rows.keys(lambda work: self._child(work)[0])
        places = [(b, i) for b, keys in enumerate(blocks) for i, key in enumerate(keys)]
        same = [at for at in places if blocks[at[0]][at[1]] == suspect.key]
        same = same or [at for at in places if blocks[at[0]][at[1]][:3] == suspect.key[:3]] or places
        if not same:
            return [], []
        block, row = same[-1]
        order = blocks[block][row::-1]
        if suspect.operator != READING and len(self._steps) + self._rows.makes_items > 1:
            order += blocks[block][:row:-1]
        for earlier in reversed(blocks[:block]):
            order += earlier[::-1]
        return order, blocks[block][row + 1 :]

    def _blamed(self, runs: list[set[Key]], key: Key, fell: ChildDeath, behind: int) -> BadRow | None:
        """The row at the last operator where leaving it out lets the others live."""
        operators = [step.operators[0] for step in reversed(self._steps) if step.operators]
        marks = [Mark(operator, 1, key) for operator in operators]
        if self._rows.makes_items:
            marks.append(Mark(READING, 1, (*key[:3], -1, 0, 0)))
        for mark in marks:
            bad = _bad(fell, mark, behind)
            if len(marks) == 1 or self._fall(*runs, bad=bad) is None:
                return bad
        return None

    def _fall(self, *runs: set[Key], bad: BadRow | None = None) -> ChildDeath | None:
        """How a child ends that works on these rows, one run after the other, or on all; None where it lives."""
        steps, rows = self._steps, self._rows

        def work(env: Env) -> None:
            blocks = list(rows.blocks({key for run in runs for key in run} if runs else None, env))
            if env.marks is not None and steps:  # what reading did to the process is no row's fault
                env.marks.reading(0, 0, 0)
                gc.collect()
            for run in runs or (None,):
                for part in [part for block in blocks for part in _some(block, run)]:
                    with suppress(Exception):  # an error is no death
                        run_steps(steps, part, env, Timing())

        return self._child(work, *([bad] if bad is not None else []))[1]

    def _child(self, work: Callable[[Env], Any], *bad: BadRow) -> tuple[Any, ChildDeath | None]:
        """What ``work`` returns in a child, or how the child died.

        Raises:
            _Inconclusive: it died where no row is at hand.
        """
        ours = self._marks
        marks = Marks(ours.place, True, ours.divided, (*ours.bad, *bad), apiece=self._apiece)
        with tempfile.TemporaryFile() as answer, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside a thread, which holds nothing here
            kills = memory.kills()
            pid = os.fork()
            if pid == 0:
                _be_child(lambda: work(replace(self._env, marks=marks, watch="")), answer.fileno())
            code, hung = self._wait(pid)
            answer.seek(0)
            said = answer.read()
        if said.endswith(_OVER):
            return pickle.loads(said[: -len(_OVER)]), None  # noqa: S301 - made by our child
        seen = ours.seen()
        mark = seen.mark if seen is not None and seen.pid == pid else None
        fell = ChildDeath(hung or memory.ending(code, kills), mark, bool(hung))
        self.deaths.append(fell)
        if mark is None or not mark.rows:
            raise _Inconclusive
        return None, fell

    def _wait(self, pid: int) -> tuple[int, str]:
        """The exit code of a child, or the signal below 0; and why it was ended, where it was because of the time."""
        hung, pause = "", _PAUSES[0]
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
            if ended and os.WIFSTOPPED(status):
                os.kill(pid, signal.SIGCONT)
            elif ended:
                return os.waitstatus_to_exitcode(status), hung
            hung = hung or self._too_long(pid)
            if hung:
                os.kill(pid, signal.SIGKILL)
            time.sleep(pause)
            pause = min(2 * pause, _PAUSES[1])

    def _too_long(self, pid: int) -> str:
        seen = self._marks.seen()
        if seen is None or seen.pid != pid or not seen.mark.rows:
            return ""
        now, patience = time.monotonic(), self._marks.patience
        if seen.overdue(now):
            return f"no result within timeout={seen.limit:g} s"
        return f"no progress within timeout={patience:g} s" if patience and seen.began + patience < now else ""


def _be_child(work: Callable[[], Any], answer: int) -> None:
    """Works, says so, and is gone; whatever else happens, no code of the parent runs here."""
    try:
        die_with_the_starting_thread()
        said = pickle.dumps(work()) + _OVER
        with os.fdopen(answer, "wb", closefd=False) as file:
            file.write(said)
    finally:
        os._exit(0)


def _up_to(steps: Sequence[Step], operator: int) -> tuple[Step, ...]:
    """The steps until that of an operator; none where reading was under way."""
    if operator == READING:
        return ()
    last = next((i for i, step in enumerate(steps) if operator in step.operators), len(steps) - 1)
    return tuple(steps[: last + 1])


def _bad(fell: ChildDeath, mark: Mark, behind: int) -> BadRow:
    when = f"{behind} row(s) later, in a process of its own" if behind else "in a process of its own"
    return BadRow(mark, fell.how if fell.hung else f"{fell.how}, {when}", fell.hung)


_BY_ONE = 64  # rows: fewer are gone through one by one, for one death; more are halved first, for one death each


def shortest(dies: Callable[[int], bool], rows: int) -> int | None:
    """The fewest of the last ``rows`` rows that end a process; None where all of them do not.

    The last one is tried alone. Then come longer runs, each by one row more than the one before, so that a run that
    dies leaves few rows to go through: two deaths for rows within 64 of the end, and one where the last one dies alone.

    Args:
        dies: whether a process that runs the last so many rows ends; it does for all longer runs, if it does for one.
        rows: how many there are, above 0.

    Example:
        >>> shortest(lambda run: run >= 20, 1000), shortest(lambda run: False, 1000)
        (20, None)
    """
    low, step = 0, 1  # runs of ``low`` rows survive
    while True:
        high = min(low + step, rows)
        if dies(high):
            break
        if high == rows:
            return None
        low, step = high, step + 1 if high < _BY_ONE else high
    while high - low > _BY_ONE:
        middle = (low + high) // 2
        low, high = (low, middle) if dies(middle) else (middle, high)
    return next((run for run in range(low + 1, high) if dies(run)), high)
