"""take and skip: keep only the first rows or batches, or all except the first ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from cedar.core.cursor import hash_ints
from cedar.core.errors import PipelineError, invalid_call
from cedar.core.limits import as_int
from cedar.core.stream import (
    PENDING,
    At,
    Count,
    Flow,
    GeneratorFlow,
    Piece,
    Pieces,
    Position,
    Rows,
    Stream,
    is_count,
    is_list,
)
from cedar.operators.base import Effects, Resizable, RowUse, StreamContext, StreamOperator

TURNS = 1 << 24  # laps modulo this number count up from pass to pass, so that lanes can swap their rows in turn


def whole(value: Any, label: str, least: int = 0) -> int:
    """Return ``value`` as an int.

    Raises:
        PipelineError: ``value`` is not an integer, or is below ``least``; the error names the user's line.

    Examples:
        >>> from cedar.operators.take import whole
        >>> whole(3, "take(n)")
        3
    """
    number = as_int(value)
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise invalid_call(f"{label} is {value!r}", fix=f"give an integer that is at least {least}")
    return number


def whole_seed(value: Any, label: str) -> int:
    """Return a seed as an int; raise PipelineError if it is not an integer."""
    number = as_int(value)
    if isinstance(number, bool) or not isinstance(number, int):
        raise invalid_call(f"{label}(seed) is {value!r}", fix="give an integer")
    return number


@dataclass(frozen=True)
class _UnitCut(StreamOperator):
    """The base class of ``take`` and ``skip``, which split a stream after its first ``n`` units."""

    n: int
    local: bool = False
    group_use = "kept"

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", whole(self.n, f"{self.name}(n)"))

    def label(self) -> str:
        return f"{self.name}({self.n})"

    def effects(self) -> Effects:
        return Effects(frozenset(), frozenset(), rows="stream")

    def parameters(self) -> dict[str, Any]:
        return {"n": self.n, "local": self.local}


@dataclass(frozen=True)
class Take(_UnitCut, Resizable):
    """Keeps the first ``n`` units (rows, or batches after a ``batch``).

    Args:
        n: the number of units to keep.
        local: True counts on each rank separately.

    Raises:
        PipelineError: ``n`` is negative or not an integer.

    Examples:
        >>> from cedar.operators.take import Take
        >>> Take(10).label()
        'take(10)'
    """

    name: ClassVar[str] = "take"
    row_use = RowUse("first")

    def resized(self, few: Callable[[int, int, int], int]) -> Take:
        return replace(self, n=few(self.n, 17, 7))

    def endless(self, *inputs: bool) -> bool:
        return False

    def stream(self, inputs: tuple[Stream, ...], context: StreamContext) -> Stream:
        return PartStream(inputs[0], 0, self.n)


class PartStream(Stream):
    """Units ``first`` to ``stop`` of a stream; infinity stands for its end.

    A position ``at`` is [input position, number of units delivered before it]. At the beginning, the input position is
    None, and ``open_at`` seeks the first unit.
    """

    def __init__(self, source: Stream, first: int, stop: float) -> None:
        self._source = source
        self._first = first
        self._most = stop - first

    @property
    def count(self) -> Count:  # type: ignore[override]
        count = self._source.count
        return None if count is None else max(0, min(count - self._first, self._most))

    def start(self) -> At:
        return [None, 0]

    def seek(self, unit: int, lap: int = 0) -> Position:
        unit = int(min(unit, self._most))
        return [[self._seek(unit, lap), unit], 0]

    def fits(self, at: At) -> bool:
        if not is_list(at, 2) or not is_count(at[1]) or at[1] > self._most:
            return False
        return at == self.start() or self._source.fits_position(at[0])

    def open_at(self, at: At, lap: int) -> Flow:
        position, taken = at
        source = self._source.open(self._seek(0, lap) if position is None else position, lap)

        def limit(units: float) -> None:
            if (most := min(units, self._most - taken)) != math.inf:
                source.limit(int(most))

        def pieces() -> Pieces:
            nonlocal taken
            wait = yield PENDING
            while taken < self._most and (piece := source.pull(wait)) is not None:
                if piece is not PENDING:
                    at = [piece.position(), taken]
                    piece = piece.slice(0, int(min(piece.units, self._most - taken)))
                    taken += piece.units
                    if taken >= self._most:
                        source.close()  # prefetched units are no longer needed
                    piece = replace(piece, at=at, skip=0, end=None)
                wait = yield piece
                del piece

        limit(math.inf)
        return GeneratorFlow(pieces(), source, limit=limit)

    def _seek(self, unit: int, lap: int) -> Position:
        return self._source.seek(clip_unit(unit + self._first, self._source.count), lap)


@dataclass(frozen=True)
class SkipRows(_UnitCut, Resizable):
    """Skips the first ``n`` units (rows, or batches after a ``batch``).

    Args:
        n: the number of units to skip.
        local: True counts on each rank separately.

    Raises:
        PipelineError: ``n`` is negative or not an integer.

    Examples:
        >>> from cedar.operators.take import SkipRows
        >>> SkipRows(10).label()
        'skip(10)'
    """

    name: ClassVar[str] = "skip"
    row_use = RowUse("rest")

    def resized(self, few: Callable[[int, int, int], int]) -> SkipRows:
        return replace(self, n=few(self.n, 2, 3))

    def stream(self, inputs: tuple[Stream, ...], context: StreamContext) -> Stream:
        return PartStream(inputs[0], self.n, math.inf)


def clip_unit(unit: int, count: Count) -> int:
    """Return ``unit``, but at most ``count`` if the count is known and finite."""
    return unit if count is None or count == math.inf else min(unit, int(count))


def lap_of(outer: int, passes: int) -> int:
    """Return the lap number of pass ``passes`` within lap ``outer`` of an enclosing ``repeat``.

    Examples:
        >>> from cedar.operators.take import lap_of
        >>> lap_of(0, 3)
        3
    """
    if outer == 0:
        return passes
    return (hash_ints(outer, passes) >> 1 & -TURNS) | (outer + passes) % TURNS


@dataclass(frozen=True)
class Repeat(StreamOperator):
    """Repeats the input ``n`` times or forever. Every pass has its own row keys, so shuffles and draws differ.

    Args:
        n: the number of passes; None repeats forever.

    Raises:
        PipelineError: ``n`` is negative or not an integer; while running, if an input without units would be
            repeated forever.

    Examples:
        >>> from cedar.operators.take import Repeat
        >>> Repeat(2).label(), Repeat().label()
        ('repeat(2)', 'repeat()')
    """

    n: int | None = None
    name: ClassVar[str] = "repeat"
    row_use = RowUse("repeated", lanes=True)

    def __post_init__(self) -> None:
        if self.n is not None:
            object.__setattr__(self, "n", whole(self.n, "repeat(n)"))

    def label(self) -> str:
        return "repeat()" if self.n is None else f"repeat({self.n})"

    def effects(self) -> Effects:
        return Effects(frozenset(), frozenset(), rows="stream")

    def endless(self, *inputs: bool) -> bool:
        return self.n is None or all(inputs)

    def parameters(self) -> dict[str, Any]:
        return {"n": self.n}

    def stream(self, inputs: tuple[Stream, ...], context: StreamContext) -> Stream:
        return RepeatStream(inputs[0], self.n, context)


class RepeatStream(Stream):
    """A position ``at`` is [pass, input position]."""

    def __init__(self, source: Stream, n: int | None, context: StreamContext) -> None:
        self.source = source
        self.n = math.inf if n is None else n
        self.context = context

    @property
    def count(self) -> Count:  # type: ignore[override]
        return _times(self.source.count, self.n)

    def start(self) -> At:
        return self.first(0)

    def first(self, number: int) -> At:
        """Return the position at which pass ``number`` begins."""
        return [number, [self.source.start(), 0]]

    def seek(self, unit: int, lap: int = 0) -> Position:
        count = self.source.count
        if count is None or self.n == 0:
            return [self.start(), unit]
        if count == math.inf:
            return [[0, self.source.seek(unit, lap_of(lap, 0))], 0]
        if count == 0:
            return [self.start(), 0]
        number, rest = divmod(unit, int(count))
        if number >= self.n:
            return [self.first(int(self.n)), 0]
        return [[number, self.source.seek(rest, lap_of(lap, number))], 0]

    def fits(self, at: At) -> bool:
        return is_list(at, 2) and is_count(at[0]) and self.source.fits_position(at[1])

    def open_at(self, at: At, lap: int) -> Flow:
        return GeneratorFlow(self._passes(at, lap))

    def _passes(self, at: At, lap: int) -> Pieces:
        number, position = at
        whole = False  # whether this flow reads the current pass from its beginning
        empty = 0  # number of passes without a row, one after another; in each, a rank reads another rank's rows
        unmarked: Rows | None = None
        wait: bool | None = None
        while number < self.n:
            units = 0
            with closing(self.source.open(position, lap_of(lap, number))) as source:
                if wait is None:
                    wait = yield PENDING
                while (piece := source.pull(wait)) is not None:
                    if piece is not PENDING:
                        units += piece.units > 0 and any(map(len, piece.rows.blocks))  # not counting skipped rows
                        if piece.units:
                            unmarked = None if piece.ends_window else piece.rows
                        piece = replace(piece, at=[number, piece.position()], skip=0, end=None)
                    wait = yield piece
                    del piece
            empty = 0 if units else empty + whole
            if empty == self.context.ranks and self.n == math.inf:
                raise PipelineError(
                    "repeat() would continue forever: its input has nothing to give",
                    site=self.context.site,
                    done=f"pass {number} ended without a single row",
                    fix="check the filters, sources and skipped rows before repeat(), or give repeat a number",
                )
            number, position, whole = number + 1, [self.source.start(), 0], True
            if unmarked is not None and number < self.n:
                # End the window with the pass; otherwise a window would never end if the input does not mark ends.
                rows, unmarked = unmarked.slice(0, 0), None
                wait = yield Piece(rows, self.first(number), ends_window=True)


def _times(count: Count, n: float) -> Count:
    if n == 0 or count == 0:  # an empty input that is repeated forever has no length, and fails in a run
        return 0 if n != math.inf else None
    if math.inf in (n, count):
        return math.inf
    return None if count is None else count * n
