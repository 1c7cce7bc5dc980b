"""Deal the units of an epoch to ranks.

Where the number of units is known, ranks take contiguous runs: the epoch is cut into rounds, each round into one run
per rank, so that a rank reads little of what others keep. Where it is unknown, ranks take turns unit by unit. A state
saved by N ranks is a list of how many units each had taken, so the rest can be dealt anew to M.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, TypeAlias

from cedar.core.errors import ResumeError
from cedar.core.stream import Count

Interval: TypeAlias = tuple[int, float]  # up to infinity
EVERYTHING = 1 << 60  # taken by a rank that is through an epoch
_APART = 1 << 17  # units that one rank may be ahead of another: they are listed one by one
History: TypeAlias = list[Any]  # [[world, chunk, [taken by each rank]], ...], oldest first


def dealt_runs(total: float, world: int, rank: int, chunk: int, last: str) -> Iterator[tuple[int, int]]:
    """The runs of unit numbers that a rank takes, in order; numbers from ``total`` on are padding."""
    if total == math.inf:
        start = rank * chunk
        while True:
            yield start, start + chunk
            start += world * chunk
    each = int(total) // world
    rounds = max(1, each // chunk)
    for number in range(rounds):
        low, high = each * number // rounds, each * (number + 1) // rounds
        if high > low:
            start = world * low + rank * (high - low)
            yield start, start + high - low
    rest = int(total) - each * world
    if (last == "keep" and rank < rest) or (last == "pad" and rest):
        yield each * world + rank, each * world + rank + 1


def units_of(total: Count, world: int, rank: int, last: str) -> Count:
    """How many units a rank takes."""
    if total is None or total == math.inf:
        return total
    each, rest = divmod(int(total), world)
    if last == "keep":
        return each + (rank < rest)
    return each + (1 if last == "pad" and rest else 0)


def remaining(total: Count, history: History, last: str) -> list[Interval]:
    """What the ranks of all earlier worlds have left, as intervals of unit numbers."""
    left: list[Interval] = [(0, math.inf if total is None else total)]
    for world, chunk, taken in history:
        count = _length(left)
        consumed: list[tuple[int, int]] = []
        if total is None:
            if max(taken) >= EVERYTHING:
                raise ResumeError(
                    "one rank is many epochs ahead of another, and how much it took of this one is not known any more",
                    fix="save the states of all ranks at the same step",
                )
            least = min(taken)
            if max(taken) - least > _APART:
                raise ResumeError(
                    f"one rank has {max(taken) - least:,} units more than another, which no run comes to",
                    fix="use the states as they were saved",
                )
            consumed.append((0, least * world))
            consumed += [(r + k * world, r + k * world + 1) for r, mine in enumerate(taken) for k in range(least, mine)]
        else:
            for r, mine in enumerate(taken):
                need = mine
                for low, high in dealt_runs(count, world, r, chunk, last):
                    if need <= 0:
                        break
                    consumed.append((low, min(high, low + need)))
                    need -= high - low
        left = _subtract(left, sorted(consumed))
    return left


def steps_from(total: Count, history: History, last: str) -> int:
    """The first unit that is left, where ranks took units in turns, and all of them as many.

    Raises:
        ResumeError: some rank had taken its part of a step, and another had not.
    """
    for place, (world, _, taken) in enumerate(history):
        length = None if total is None else _length(remaining(total, history[:place], last))
        most = [units_of(length, world, rank, last) for rank in range(world)]
        if any(mine < max(taken) and (m is None or mine < m) for mine, m in zip(taken, most, strict=True)):
            raise ResumeError(
                f"balance() deals the rows of whole steps, and the ranks had taken {taken} batches",
                done="nothing was read",
                fix="save the states of all ranks at the same step, or go on with the same number of ranks",
            )
    left = remaining(total, history, last)
    return int(left[0][0]) if left else 0


def _length(intervals: list[Interval]) -> int | float:
    return sum(high - low for low, high in intervals)


def _subtract(left: list[Interval], consumed: list[tuple[int, int]]) -> list[Interval]:
    """``left`` without ``consumed``, whose numbers count within ``left``; sorted and disjoint both."""
    result: list[Interval] = []
    passed = 0
    pending = list(reversed(consumed))
    for low, high in left:
        size = high - low
        start: int | float = 0
        while pending and pending[-1][0] < passed + size:
            a, b = pending.pop()
            if a - passed > start:
                result.append((low + int(start), low + a - passed))
            start = max(start, b - passed)
            if b > passed + size:
                pending.append((int(passed + size), b))
                start = size
        if start < size:
            result.append((low + int(start), high))
        if size == math.inf:
            break
        passed += int(size)
    return result


class Numbers:
    """Translates a number among the remaining units to its number in the epoch."""

    def __init__(self, intervals: list[Interval]) -> None:
        self._intervals = intervals
        self._before = [0]
        for low, high in intervals[:-1]:
            self._before.append(self._before[-1] + int(high - low))
        self.total: int | float = _length(intervals)

    def at(self, number: int) -> int:
        """The epoch's number of remaining unit ``number``."""
        i = bisect_right(self._before, number) - 1
        return self._intervals[i][0] + number - self._before[i]

    def spans(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """The epoch's numbers of remaining units ``low`` to ``high``, as runs."""
        while low < high:
            i = bisect_right(self._before, low) - 1
            start = self._intervals[i][0] + low - self._before[i]
            stop = min(self._intervals[i][1], start + high - low)
            yield start, int(stop)
            low += int(stop) - start

    def rank_of(self, number: int) -> int | None:
        """The remaining number of the epoch's unit ``number``; None when it was taken before."""
        for before, (low, high) in zip(self._before, self._intervals, strict=True):
            if low <= number < high:
                return before + number - low
        return None
