"""Marks: records of a task's current operator and row, in shared memory that survives a crash of the worker.

A worker that crashes or hangs cannot report its progress. Each task therefore has a slot in a memory page that its
worker shares with the process that waits for the result. A task normally marks its operator and block. It also marks
each row before calling a function if the function has a time limit or an earlier attempt of the task crashed.
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

READING = -2  # the operator of a mark while a source reads rows
SLOT = 128  # bytes per slot; slot 0 of a page contains the page's token
TOKEN = 16  # bytes of the token
# Each mark begins and ends with its sequence number; if the two differ, the writer crashed while writing. Between them:
# the process, operator, number of rows, whether they can run one by one, start time, time limit in seconds, and the key
# of the first row.
_LAYOUT = struct.Struct("@qqqqqddqqqqqqq")


_PARTS = ("source", "file", "row", "sub", "repeat", "branch")


class WorkerKilled(Exception):
    """The failure of a row that crashed every process that ran it."""


class BlockKilled(WorkerKilled):
    """The failure of a block that crashes processes although none of its rows does when run separately."""


@dataclass(frozen=True)
class Mark:
    """The current operator and rows of a task.

    Args:
        operator: the operator's ordinal; ``READING`` while a source reads, -1 for operators that cedar inserted.
        rows: the number of rows, starting with the row of ``key``.
        key: the parts of the first row's key: source, file, row, sub, repeat and branch.
        divisible: whether the operator could process the rows one by one.
    """

    operator: int
    rows: int
    key: tuple[int, ...] = (0, 0, 0, -1, 0, 0)
    divisible: bool = False

    @property
    def ref(self) -> RowRef:
        """A reference to the first row."""
        source, file, row, sub, repeat, _ = self.key
        return RowRef(source, file, row, sub, repeat, unit="row" if self.rows == 1 else "rows starting at")


@dataclass(frozen=True)
class BadRow:
    """A row, batch or block that crashed the process that ran it.

    Args:
        mark: the mark of the row, or of a row in the block.
        how: a description of how the process ended.
        hung: whether the process was killed because of a time limit.
        block: whether only the whole block crashes a process, while its rows do not when run separately.
    """

    mark: Mark
    how: str
    hung: bool = False
    block: bool = False

    def error(self, first: int = 0, last: int = 0) -> Exception:
        """Return an exception that describes the crash; ``first`` and ``last`` are the rows of a block."""
        if self.block:
            return BlockKilled(f"{self.how}, on rows {first} to {last} together and on none of them alone")
        return TimeoutError(self.how) if self.hung else WorkerKilled(self.how)


@dataclass(frozen=True)
class Trial:
    """A part of a task that a process runs to find out whether this part causes a crash.

    Args:
        suspect: the last mark of the attempt that crashed.
        alone: True runs only the marked row, not its whole block.
        apiece: True runs the operator on the rows one by one.
    """

    suspect: Mark
    alone: bool = False
    apiece: bool = False


@dataclass(frozen=True)
class SlotReading:
    """The content of a slot: its mark, the writing process, the start (``time.monotonic``) and the limit in seconds."""

    mark: Mark
    pid: int
    began: float
    limit: float

    def overdue(self, now: float) -> bool:
        return self.limit > 0 and self.began + self.limit < now


@dataclass(frozen=True)
class SlotAddress:
    """The address of a slot, for use in another process.

    Args:
        path: the file that the page is mapped from.
        token: the first bytes of that file, which are unique to it.
        number: the number of the slot.
        owner: the ID of the process that reads the slot.
    """

    path: str
    token: bytes
    number: int
    owner: int


@dataclass(eq=False)
class Marks:
    """Writes the marks of one task, and stores which of its rows crashed earlier attempts.

    Args:
        place: the address of the slot.
        fine: whether to mark every row.
        divided: marks of groups of rows that crashed the process twice; their rows now run one by one.
        bad: rows and blocks that are not retried.
        trial: the part to run instead of the whole task; None runs the whole task.
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
        """Whether another process reads the marks, and kills this process if a row takes too long."""
        return self.place.owner != os.getpid() and _page(self.place.path, self.place.token) is not None

    def enter(self, operator: int, block: Block, divisible: bool) -> bool:
        """Record that an operator starts a block; return True if it must process the rows one by one."""
        self._block = block
        self._set(Mark(operator, len(block), _first_key(block), divisible))
        apiece = self.trial is not None and self.trial.apiece and self.trial.suspect.operator == operator
        return block.slots > 1 and (apiece or (bool(self.divided) and self._mark in self.divided))

    def reading(self, source: int, file: int, row: int, stop: int = 0) -> None:
        """Record that a source starts to read the rows of a split from ``row`` to before ``stop``."""
        self._block, self._span = None, (row, stop - 1)
        self._set(Mark(READING, 0, (source, file, row, -1, 0, 0)))

    def guard(self, fn: Callable[..., Any], calls: int, timeout: float | None) -> Callable[..., Any]:
        """Wrap ``fn``, so that each call is marked; it is called once per row or once for the current block."""
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
        """Restore the mark of the whole block after calls that ``guard`` marked."""
        yield
        if self._guarded:
            self._guarded = False
            self._set(self._mark)

    def seen(self) -> SlotReading | None:
        """Return the current content of the slot; None if this process cannot read it."""
        page = _page(self.place.path, self.place.token)
        return None if page is None else written(page, self.place.number)

    @contextmanager
    def aside(self, operator: int) -> Iterator[None]:
        """Mark work of an operator that is not for any row, such as constructing an instance."""
        before = self._mark
        self._set(Mark(operator, 0))
        try:
            yield
        finally:
            self._set(before)

    def known(self) -> BadRow | None:
        """Return the record of the current row, batch or block if it must not be retried; otherwise None."""
        at = replace(self._mark, divisible=False) if self.bad else None
        return next((e for e in self.bad if self._holds(e) or replace(e.mark, divisible=False) == at), None)

    def _holds(self, bad: BadRow) -> bool:
        """Return whether ``bad`` is a block of this operator with any current row; while reading, any block."""
        if not bad.block or bad.mark.operator != self._mark.operator:
            return False
        return self._block is None or bad.mark.key in each_key(self._block.keys)

    def item(self, index: int) -> None:
        """Record that a source is about to create one row.

        Raises:
            WorkerKilled: the row is known to crash the process.
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
    """Mark a row; a source of Python objects calls this before it creates the row.

    Raises:
        WorkerKilled: the row is known to crash the process.
    """
    marks: Marks | None = getattr(_current, "marks", None)
    if marks is not None:
        marks.item(index)


@contextmanager
def reading(marks: Marks | None, source: int, file: int, row: int, stop: int = 0) -> Iterator[None]:
    """Mark the reading of a split, and make ``marks`` available to ``making`` in this thread."""
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
    """Return the content of a slot of a page; None if it is empty or only partly written."""
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
    """Return the key of each row as a tuple, like ``Mark.key``."""
    return list(zip(*(_each(getattr(keys, part), len(keys)) for part in _PARTS), strict=True))


def _each(part: Any, rows: int) -> list[int]:
    return [part] * rows if isinstance(part, int) else part.tolist()


@lru_cache(maxsize=16)
def _page(path: str, token: bytes) -> mmap.mmap | None:
    """Map the page of another process; None if it is not available, for example on another machine."""
    try:
        with open(path, "r+b") as file:
            page = mmap.mmap(file.fileno(), 0)
    except (OSError, ValueError):
        return None
    return page if page[:TOKEN] == token else None
