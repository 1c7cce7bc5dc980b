"""Search: which of the rows before a death is to blame, for few deaths: what survives costs none."""

from __future__ import annotations

from collections.abc import Callable

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
