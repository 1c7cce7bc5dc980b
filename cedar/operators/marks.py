"""Marks: which operator and which row a task is at, in memory that outlives the process that writes it.

A worker that dies or hangs says nothing any more. Where it was stands in a slot of a page that it shares with the
process that waits for its result. A task that was lost before marks every row that it gives to a function; others mark
the rows of functions that have a time limit, and else only the operator and the block.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count, repeat
from typing import Any

from cedar.core.block import Block
from cedar.core.errors import RowRef

READING = -2  # in the place of an operator: rows are being read
SLOT = 128  # bytes; slot 0 of a page holds its token
TOKEN = 16
# A number that every mark has for itself, at both ends: where they differ, the writer died within; then the process,
# operator, rows, whether they can be distinguished, when it began, seconds that it may take, and the key of the first
# row.
_LAYOUT = struct.Struct("@qqqqqddqqqqqqq")


_PARTS = ("source", "file", "row", "sub", "repeat", "branch")


class WorkerKilled(Exception):
    """Stands for what a function did on a row: the process that ran it died each time."""


class BlockKilled(WorkerKilled):
    """The same for a block of rows, of which none ends a process alone."""


@dataclass(frozen=True)
class Mark:
    """What a task is at.

    Args:
        operator: its ordinal; ``READING`` below all of them, -1 for what is not an operator of the user.
        rows: that it works on, from the one of ``key`` on.
        key: source, file, row, sub, repeat, branch of the first.
        divisible: the rows could be worked on one by one.
    """

    operator: int
    rows: int
    key: tuple[int, ...] = (0, 0, 0, -1, 0, 0)
    divisible: bool = False

    @property
    def ref(self) -> RowRef:
        """The first row."""
        source, file, row, sub, repeat, _ = self.key
        return RowRef(source, file, row, sub, repeat, unit="row" if self.rows == 1 else "rows starting at")


@dataclass(frozen=True)
class BadRow:
    """A row, a batch or a block that ended the process that worked on it.

    Args:
        mark: of the row, or of one in the block.
        how: the process ended.
        hung: it was ended because of a time limit.
        block: all rows of the block that the row is in end a process together, and none does alone.
    """

    mark: Mark
    how: str
    hung: bool = False
    block: bool = False

    def error(self, first: int = 0, last: int = 0) -> Exception:
        """What takes the place of the function's own; ``first`` and ``last`` are the rows of a block."""
        if self.block:
            return BlockKilled(f"{self.how}, on rows {first} to {last} together and on none of them alone")
        return TimeoutError(self.how) if self.hung else WorkerKilled(self.how)


@dataclass(frozen=True)
class Trial:
    """What a process runs in the place of a task, to see whether that ends it.

    Args:
        suspect: where an attempt ended.
        alone: only this row is run, not the block that it is in.
        apiece: its operator gets the rows one by one.
    """

    suspect: Mark
    alone: bool = False
    apiece: bool = False


@dataclass(frozen=True)
class SlotReading:
    """A slot as it was read: its mark, by which process, since when (``time.monotonic``), and how long it may take."""

    mark: Mark
    pid: int
    began: float
    limit: float

    def overdue(self, now: float) -> bool:
        return self.limit > 0 and self.began + self.limit < now


@dataclass(frozen=True)
class SlotAddress:
    """A slot, described for another process.

    Args:
        path: of the file that the page is mapped from.
        token: what it begins with, so that no other file is taken for it.
        number: of the slot.
        owner: the process that reads it.
    """

    path: str
    token: bytes
    number: int
    owner: int


@dataclass(eq=False)
class Marks:
    """Where the marks of one task go, and what is known of its rows from earlier attempts.

    Args:
        place: the slot.
        fine: mark every row.
        divided: marks of several rows that ended the process twice: these rows are worked on one by one.
        bad: what is not retried.
        trial: what is to be tried instead of the task's work.
    """

    place: SlotAddress
    fine: bool = False
    divided: tuple[Mark, ...] = ()
    bad: tuple[BadRow, ...] = ()
    trial: Trial | None = None
    _count: int = field(default=0, init=False, repr=False)
    _block: Block | None = field(default=None, init=False, repr=False)
    _mark: Mark = field(default=Mark(-1, 0), init=False, repr=False)
    _guarded: bool = field(default=False, init=False, repr=False)
    _span: tuple[int, int] = field(default=(0, 0), init=False, repr=False)  # first and last row of the current split

    def __reduce__(self) -> tuple[Any, ...]:
        return Marks, (self.place, self.fine, self.divided, self.bad, self.trial)

    @property
    def watched(self) -> bool:
        """Something sees the marks, and ends this process where a row takes too long."""
        return self.place.owner != os.getpid() and _page(self.place.path, self.place.token) is not None

    def enter(self, operator: int, block: Block, divisible: bool) -> bool:
        """An operator begins with a block; True if it is to be worked on row by row."""
        self._block = block
        self._set(Mark(operator, len(block), _first_key(block), divisible))
        apiece = self.trial is not None and self.trial.apiece and self.trial.suspect.operator == operator
        return block.slots > 1 and (apiece or (bool(self.divided) and self._mark in self.divided))

    def reading(self, source: int, file: int, row: int, stop: int = 0) -> None:
        """A split begins to be read, from a row up to another."""
        self._block, self._span = None, (row, stop - 1)
        self._set(Mark(READING, 0, (source, file, row, -1, 0, 0)))

    def guard(self, fn: Callable[..., Any], calls: int, timeout: float | None) -> Callable[..., Any]:
        """``fn``, called once for each row of the current block, or once for all of it, with a mark for each call."""
        if self._block is None or not (self.fine or self.bad or timeout is not None):
            return fn
        self._guarded = True
        group, keys = self._mark, self._block.live_keys()
        each = calls == len(keys)
        parts = [_each(getattr(keys, part), len(keys)) for part in _PARTS] if each else []
        todo = zip(*parts, strict=True) if each else repeat(group.key, calls)
        template = replace(group, rows=1, divisible=False) if each else group
        bad = {e.mark.key: e for e in self.bad if not e.block and replace(e.mark, key=template.key) == template}
        page, offset, process = _page(self.place.path, self.place.token), self.place.number * SLOT, os.getpid()
        numbers = count(self._count + 1)
        self._count += calls
        clock, limit = time.monotonic, timeout or 0.0
        fields = template.operator, template.rows, template.divisible

        def marked(*args: Any, **named: Any) -> Any:
            key = next(todo)
            if key in bad:
                raise bad[key].error()
            if page is not None:
                number = next(numbers)
                _LAYOUT.pack_into(page, offset, number, process, *fields, clock(), limit, *key, number)
            return fn(*args, **named)

        return marked

    @contextmanager
    def calls(self) -> Iterator[None]:
        """Around calls with their own marks: what follows is not a single row's."""
        yield
        if self._guarded:
            self._guarded = False
            self._set(self._mark)

    def seen(self) -> SlotReading | None:
        """What its slot holds now, where that can be seen from here."""
        page = _page(self.place.path, self.place.token)
        return None if page is None else written(page, self.place.number)

    @contextmanager
    def aside(self, operator: int) -> Iterator[None]:
        """Around what an operator does for no row, such as making the instance that it calls."""
        before = self._mark
        self._set(Mark(operator, 0))
        try:
            yield
        finally:
            self._set(before)

    def known(self) -> BadRow | None:
        """What is known of the row, the batch or the current block, if that is not to be retried."""
        at = replace(self._mark, divisible=False) if self.bad else None
        return next((e for e in self.bad if self._holds(e) or replace(e.mark, divisible=False) == at), None)

    def _holds(self, bad: BadRow) -> bool:
        """It is a block, and the current one: a task reads one split, and its operators get the rows in few blocks."""
        if not bad.block or bad.mark.operator != self._mark.operator:
            return False
        return self._block is None or bad.mark.key in each_key(self._block.keys)

    def item(self, index: int) -> None:
        """A source makes one row.

        Raises:
            WorkerKilled: it is known to end the process.
        """
        if self.fine or self.bad:
            source, file, *_ = self._mark.key
            self._mark = Mark(READING, 1, (source, file, index, -1, 0, 0))
            if (bad := self.known()) is not None:
                raise bad.error(*self._span)
            self._set(self._mark)

    def _set(self, mark: Mark) -> None:
        self._mark = mark
        page = _page(self.place.path, self.place.token)
        if page is None:
            return
        self._count = number = self._count + 1
        _LAYOUT.pack_into(
            page, self.place.number * SLOT, number, os.getpid(), mark.operator, mark.rows, mark.divisible,
            time.monotonic(), 0.0, *mark.key, number,
        )  # fmt: skip


def making(index: int) -> None:
    """Said by a source of Python objects before it makes a row.

    Raises:
        WorkerKilled: it is known to end the process.
    """
    marks: Marks | None = getattr(_current, "marks", None)
    if marks is not None:
        marks.item(index)


@contextmanager
def reading(marks: Marks | None, source: int, file: int, row: int, stop: int = 0) -> Iterator[None]:
    """Around the reading of a split: for the marks of its rows, ``making`` finds them here."""
    if marks is None:
        yield
        return
    before, _current.marks = getattr(_current, "marks", None), marks
    marks.reading(source, file, row, stop)
    try:
        yield
    finally:
        _current.marks = before


_current = threading.local()


def written(page: Any, number: int) -> SlotReading | None:
    """What a slot of a page holds; None if nothing was written, or not to the end."""
    first, pid, operator, rows, divisible, began, limit, *key, last = _LAYOUT.unpack_from(page, number * SLOT)
    if not pid or first != last:
        return None
    return SlotReading(Mark(operator, rows, tuple(key), bool(divisible)), pid, began, limit)


def _first_key(block: Block) -> tuple[int, ...]:
    keys = block.keys
    if not block.slots:
        return (0, 0, 0, -1, 0, 0)
    slots = block.live_slots() if block.dead else (0,)
    at = int(slots[0]) if len(slots) else 0
    parts = [getattr(keys, part) for part in _PARTS]
    return tuple(part if isinstance(part, int) else int(part[at]) for part in parts)


def each_key(keys: Any) -> list[tuple[int, ...]]:
    """The key of each row, as marks have it."""
    return list(zip(*(_each(getattr(keys, part), len(keys)) for part in _PARTS), strict=True))


def _each(part: Any, rows: int) -> list[int]:
    return [part] * rows if isinstance(part, int) else part.tolist()


@lru_cache(maxsize=16)
def _page(path: str, token: bytes) -> mmap.mmap | None:
    """The page of another process; None if it is not available here, on another machine for one."""
    try:
        with open(path, "r+b") as file:
            page = mmap.mmap(file.fileno(), 0)
    except (OSError, ValueError):
        return None
    return page if page[:TOKEN] == token else None
