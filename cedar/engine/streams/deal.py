"""Assign the units of an epoch to ranks.

If the number of units is known, the epoch is cut into rounds, and each round into one contiguous run of units per rank,
so that ranks read few rows of other ranks. If it is unknown, units are assigned to ranks in turn. With ``last=None``,
the units that do not fill a step on all ranks are cut into one shorter batch for each rank. A state saved by N ranks
lists how many units each rank received, so the remaining units can be redistributed to M ranks.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from cedar.core.errors import ResumeError
from cedar.core.stream import Count

Interval: TypeAlias = tuple[int, float]  # the stop may be infinity
EVERYTHING = 1 << 60  # in states: the number of units received by a rank that has finished an epoch
_MAX_LEAD = 1 << 17  # maximum difference of units received by two ranks; these units are listed one by one
History: TypeAlias = list[Any]  # [[world, chunk, [units received by each rank]], ...], oldest first
RowsOf: TypeAlias = Callable[[int], "range | None"]  # returns the rows of a unit; see ``Stream.rows_of``


def assigned_runs(
    total: float, world: int, rank: int, chunk: int, last: str | None, first: int = 0
) -> Iterator[tuple[int, int]]:
    """Yield the runs of unit numbers that a rank receives from round ``first`` on, in order.

    In each round every rank receives one run. Numbers from ``total`` on are padding.
    """
    if total == math.inf:
        start = rank * chunk + first * world * chunk
        while True:
            yield start, start + chunk
            start += world * chunk
    each = int(total) // world
    rounds = max(1, each // chunk)
    for number in range(first, rounds):
        low, high = each * number // rounds, each * (number + 1) // rounds
        if high > low:
            start = world * low + rank * (high - low)
            yield start, start + high - low
    rest = int(total) - each * world
    if (last == "keep" and rank < rest) or (last == "pad" and rest):
        yield each * world + rank, each * world + rank + 1


class End(NamedTuple):
    """How an epoch ends on all ranks.

    Args:
        each: number of units that every rank receives before the remaining ones.
        rest: the rows of each remaining unit, see ``Stream.rows_of``; None for a unit whose rows only a run determines.
        rows: with ``last=None``, how many of these rows each rank receives as its last batch; 0 if there are too few.
    """

    each: int
    rest: list[range | None]
    rows: int

    def units(self, rank: int, last: str | None) -> int:
        """Return how many units a rank receives in the epoch."""
        return self.each + (
            rank < len(self.rest) if last == "keep" else bool((self.rest and last == "pad") or self.rows)
        )

    def last_rows(self, rank: int) -> list[range]:
        """Return the rows of a rank's last batch."""
        mine: list[range] = []
        low, high = rank * self.rows, (rank + 1) * self.rows
        for rows in filter(None, self.rest):
            part = rows[max(low, 0) : max(high, 0)]
            low, high = low - len(rows), high - len(rows)
            if part and mine and mine[-1].stop == part.start:
                mine[-1] = range(mine[-1].start, part.stop)
            elif part:
                mine.append(part)
        return mine


def epoch_end(left: Numbers, world: int, last: str | None, rows_of: RowsOf) -> End:
    """Return how an epoch ends whose remaining units are ``left``."""
    total = int(left.total)
    each, rest = divmod(total, world)
    if last is None and world > 1 and each and not rest and _size(rows_of(left.number(total - 1))) < _size(rows_of(0)):
        each, rest = each - 1, world
    units = [rows_of(left.number(number)) for number in range(total - rest, total)]
    return End(each, units, sum(map(_size, units)) // world if last is None else 0)


def _size(rows: range | None) -> int:
    return 0 if rows is None else len(rows)


def remaining(total: Count, history: History, last: str | None, rows_of: RowsOf) -> list[Interval]:
    """Return the units that no rank of any earlier world has received, as intervals of unit numbers."""
    left: list[Interval] = [(0, math.inf if total is None else total)]
    for world, chunk, taken in history:
        count = whole = Numbers(left).total
        consumed: list[tuple[int, int]] = []
        if last is None and total is not None and count != math.inf:
            end = epoch_end(Numbers(left), world, last, rows_of)
            whole = end.each * world
            if min(taken) > end.each:
                consumed.append((whole, int(count)))
            elif max(taken) > end.each and end.rows:
                raise ResumeError(
                    "some ranks received the last step of the epoch, whose rows all ranks share, and others did not",
                    done="nothing was read",
                    fix="save the states of all ranks at the same step",
                )
        if total is None:
            if max(taken) >= EVERYTHING:
                raise ResumeError(
                    "one rank is many epochs ahead of another, and how much it took of this one is no longer known",
                    fix="save the states of all ranks at the same step",
                )
            least = min(taken)
            if max(taken) - least > _MAX_LEAD:
                raise ResumeError(
                    f"one rank has {max(taken) - least:,} units more than another, which no run can reach",
                    fix="use the states as they were saved",
                )
            consumed.append((0, least * world))
            consumed += [(r + k * world, r + k * world + 1) for r, mine in enumerate(taken) for k in range(least, mine)]
        else:
            first, had = _completed_rounds(whole, world, chunk, min(taken))
            if had:
                consumed.append((0, had * world))
            for r, mine in enumerate(taken):
                need = mine - had
                for low, high in assigned_runs(whole, world, r, chunk, last, first):
                    if need <= 0:
                        break
                    consumed.append((low, min(high, low + need)))
                    need -= high - low
        left = _subtract(left, sorted(consumed))
    return left


def _completed_rounds(total: float, world: int, chunk: int, least: int) -> tuple[int, int]:
    """Return how many rounds of ``assigned_runs`` all ranks completed, and the units of each rank in these.

    Args:
        least: how many units the rank that received the fewest has received.
    """
    if total == math.inf:
        return least // chunk, least // chunk * chunk
    each = int(total) // world
    rounds = max(1, each // chunk)
    done = min(rounds, ((least + 1) * rounds - 1) // each) if each else 0
    return done, each * done // rounds


def first_untaken(history: Sequence[Any], taken: int, turns: int) -> tuple[int, bool]:
    """Return the unit from which on no rank has received any, and whether ranks have received all units before it;
    the number of units is unknown.

    Args:
        taken: how many units each of ``turns`` ranks has received since they were last assigned.

    Examples:
        >>> first_untaken([[2, 1, [3, 1]]], 2, 1)  # two ranks received units 0, 2, 4 and 1; then one rank 3 and 5
        (6, True)
    """
    left = remaining(None, [*history, [turns, 1, [taken] * turns]], None, lambda _: None)
    return int(left[-1][0]), len(left) == 1


def steps_from(total: Count, history: History, last: str | None, rows_of: RowsOf) -> int:
    """Return the first remaining unit, if units were assigned in turn and all ranks received equally many.

    Raises:
        ResumeError: some ranks received their unit of a step, and others did not.
    """
    for place, (world, _, taken) in enumerate(history):
        left = Numbers(remaining(total, history[:place], last, rows_of))
        end = None if left.total == math.inf else epoch_end(left, world, last, rows_of)
        most = [end and end.units(rank, last) for rank in range(world)]
        if any(mine < max(taken) and (m is None or mine < m) for mine, m in zip(taken, most, strict=True)):
            raise ResumeError(
                f"balance() distributes the rows of whole steps, but the ranks had taken {taken} batches",
                done="nothing was read",
                fix="save the states of all ranks at the same step, or continue with the same number of ranks",
            )
    intervals = remaining(total, history, last, rows_of)
    return int(intervals[0][0]) if intervals else 0


def _subtract(left: list[Interval], consumed: list[tuple[int, int]]) -> list[Interval]:
    """Return ``left`` without ``consumed``, whose numbers count units within ``left``; both are sorted and disjoint."""
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
    """Converts a unit's number among the remaining units to its number in the epoch, and back."""

    def __init__(self, intervals: list[Interval]) -> None:
        self._intervals = intervals
        self._before: list[int] = []
        self.total: int | float = 0
        for low, high in intervals:
            self._before.append(int(self.total))
            self.total += high - low

    def number(self, number: int) -> int:
        """Return the number in the epoch of remaining unit ``number``."""
        i = bisect_right(self._before, number) - 1
        return self._intervals[i][0] + number - self._before[i]

    def spans(self, low: float, high: float) -> Iterator[Interval]:
        """Yield the numbers in the epoch of remaining units ``low`` to ``high``, as intervals."""
        high = min(high, self.total)
        while low < high:
            i = bisect_right(self._before, low) - 1
            start = self._intervals[i][0] + int(low) - self._before[i]
            stop = min(self._intervals[i][1], start + high - low)
            yield start, stop
            low += stop - start

    def rank_of(self, number: int) -> int | None:
        """Return the number among the remaining units of unit ``number``; None if it was already delivered."""
        for before, (low, high) in zip(self._before, self._intervals, strict=True):
            if low <= number < high:
                return before + number - low
        return None
