"""take and skip: keep only the first rows or batches, or all except the first ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from cedar.core.errors import PipelineError, user_site
from cedar.core.sizes import as_int
from cedar.core.stream import At, Count, Flow, Piece, Position, Pulled, Stream, is_count, is_list
from cedar.operators.base import Effects, Resizable, RowUse, StreamContext, StreamOperator


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
        raise PipelineError(f"{label} is {value!r}", site=user_site(), fix=f"give an integer that is at least {least}")
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
        return TakeStream(inputs[0], self.n)


class TakeStream(Stream):
    """A position ``at`` is [input position, number of units delivered before it]."""

    def __init__(self, source: Stream, n: int) -> None:
        self._source = source
        self._n = n

    @property
    def count(self) -> Count:  # type: ignore[override]
        count = self._source.count
        return None if count is None else min(self._n, count)

    def start(self) -> At:
        return [[self._source.start(), 0], 0]

    def seek(self, unit: int, lap: int = 0) -> Position:
        unit = min(unit, self._n)
        return [[self._source.seek(unit, lap), unit], 0]

    def fits(self, at: At) -> bool:
        return is_list(at, 2) and self._source.fits_position(at[0]) and is_count(at[1]) and at[1] <= self._n

    def open_at(self, at: At, lap: int) -> Flow:
        position, taken = at
        return TakeFlow(self._source.open(position, lap), self._n, taken)


class TakeFlow(Flow):
    def __init__(self, inner: Flow, n: int, taken: int) -> None:
        self._inner = inner
        self._n = n
        self._taken = taken
        inner.limit(n - taken)

    def pull(self, wait: bool) -> Pulled:
        piece = self._inner.pull(wait) if self._taken < self._n else None
        if not isinstance(piece, Piece):
            return piece
        at = [piece.position(), self._taken]
        piece = piece.slice(0, min(piece.units, self._n - self._taken))
        self._taken += piece.units
        if self._taken >= self._n:
            self._inner.close()  # prefetched units are no longer needed
        return replace(piece, at=at, skip=0, end=None)

    def limit(self, units: int) -> None:
        self._inner.limit(min(units, self._n - self._taken))

    def close(self) -> None:
        self._inner.close()


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
        return SkipStream(inputs[0], self.n)


class SkipStream(Stream):
    """A position ``at`` is the input position, or None for the beginning, for which ``open_at`` seeks the input."""

    def __init__(self, source: Stream, n: int) -> None:
        self._source = source
        self._n = n

    @property
    def count(self) -> Count:  # type: ignore[override]
        count = self._source.count
        return None if count is None else max(0, count - self._n)

    def start(self) -> At:
        return None

    def seek(self, unit: int, lap: int = 0) -> Position:
        return [self._seek(unit, lap), 0]

    def fits(self, at: At) -> bool:
        return at is None or self._source.fits_position(at)

    def open_at(self, at: At, lap: int) -> Flow:
        return SkipFlow(self._source.open(self._seek(0, lap) if at is None else at, lap))

    def _seek(self, unit: int, lap: int) -> Position:
        return self._source.seek(clip_unit(unit + self._n, self._source.count), lap)


def clip_unit(unit: int, count: Count) -> int:
    """Return ``unit``, but at most ``count`` if the count is known and finite."""
    return unit if count is None or count == math.inf else min(unit, int(count))


class SkipFlow(Flow):
    def __init__(self, inner: Flow) -> None:
        self._inner = inner

    def pull(self, wait: bool) -> Pulled:
        piece = self._inner.pull(wait)
        return replace(piece, at=piece.position(), skip=0, end=None) if isinstance(piece, Piece) else piece

    def limit(self, units: int) -> None:
        self._inner.limit(units)

    def close(self) -> None:
        self._inner.close()
