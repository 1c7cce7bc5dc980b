"""repeat: repeats the input, with different row keys and random draws in every pass."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from cedar.core.cursor import hash_ints
from cedar.core.errors import PipelineError
from cedar.core.stream import At, Count, Flow, Piece, Position, Pulled, Rows, Stream, is_count, is_list
from cedar.operators.base import Effects, RowUse, StreamContext, StreamOperator
from cedar.operators.take import whole


def lap_of(outer: int, passes: int) -> int:
    """Return the lap number of pass ``passes`` within lap ``outer`` of an enclosing ``repeat``.

    Examples:
        >>> from cedar.operators.repeat import lap_of
        >>> lap_of(0, 3)
        3
    """
    return passes if outer == 0 else hash_ints(outer, passes) >> 1


@dataclass(frozen=True)
class Repeat(StreamOperator):
    """Repeats the input ``n`` times or forever. Every pass has its own row keys, so shuffles and draws differ.

    Args:
        n: the number of passes; None repeats forever.

    Raises:
        PipelineError: ``n`` is negative or not an integer; while running, if an input without units would be
            repeated forever.

    Examples:
        >>> from cedar.operators.repeat import Repeat
        >>> Repeat(2).label(), Repeat().label()
        ('repeat(2)', 'repeat()')
    """

    n: int | None = None
    name: ClassVar[str] = "repeat"
    row_use = RowUse("repeated")
    shares = True

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
        return RepeatFlow(self, at, lap)


def _times(count: Count, n: float) -> Count:
    if n == 0 or count == 0:  # an empty input that is repeated forever has no length, and fails in a run
        return 0 if n != math.inf else None
    if math.inf in (n, count):
        return math.inf
    return None if count is None else count * n


class RepeatFlow(Flow):
    def __init__(self, stream: RepeatStream, at: At, lap: int) -> None:
        self._stream = stream
        self._lap = lap
        self._pass, position = at
        self._inner: Flow | None = None
        if self._pass < stream.n:
            self._inner = stream.source.open(position, lap_of(lap, self._pass))
        self._fresh = False  # whether this flow read the current pass from its beginning
        self._units = 0  # the number of units of the current pass so far
        self._unmarked: Rows | None = None

    def pull(self, wait: bool) -> Pulled:
        while self._inner is not None:
            piece = self._inner.pull(wait)
            if isinstance(piece, Piece):
                self._units += piece.units
                if piece.units:
                    self._unmarked = None if piece.ends_window else piece.rows
                return replace(piece, at=[self._pass, piece.position()], skip=0, end=None)
            if piece is not None:
                return piece
            self._turn()
            if self._unmarked is not None and self._inner is not None:
                rows, self._unmarked = self._unmarked, None
                # End the window with the pass; otherwise a window would never end if the input does not mark ends.
                return Piece(rows.slice(0, 0), self._stream.first(self._pass), ends_window=True)
        return None

    def _turn(self) -> None:
        """Begin the next pass."""
        assert self._inner is not None
        self._inner.close()
        self._inner = None
        if self._fresh and self._units == 0 and self._stream.n == math.inf:
            raise PipelineError(
                "repeat() would continue forever: its input has nothing to give",
                site=self._stream.context.site,
                done=f"pass {self._pass} ended without a single row",
                fix="check the filters and sources above repeat(), or give repeat a number",
            )
        self._pass += 1
        self._fresh, self._units = True, 0
        if self._pass < self._stream.n:
            self._inner = self._stream.source.open([self._stream.source.start(), 0], lap_of(self._lap, self._pass))

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()
