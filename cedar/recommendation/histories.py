"""Builds sessions and histories from a user's events in order of time.

If a history is fixed at the start of a session, all rows of the session have the same list, which deduplicates exactly.
If a history includes every earlier event, it slides by one event from row to row. Its lists differ, but all are slices
of the user's events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from cedar.core.columns import numbers
from cedar.core.errors import PipelineError, invalid_call
from cedar.pipeline.joining import as_table
from cedar.recommendation.rows import (
    Flags,
    Ints,
    codes_of,
    column_of,
    ordinals,
    per_minute,
    run_start,
    starts_run,
    take_rows,
)
from cedar.recommendation.slices import Slices


@dataclass(frozen=True)
class History:
    """A user's last values of a column before each row, oldest first. Create it with ``history``."""

    column: str
    n: int
    at: Literal["session", "event"] = "session"
    into: str = ""
    where: str | None = None

    def slices(self, table: Any, users: Flags, sessions: Flags) -> Slices:
        """Return the history of each row as a slice of the events.

        Args:
            table: rows grouped by user, in order of time.
            users, sessions: for each row, whether it is the first of its user, and of its session.

        Raises:
            PipelineError: a column does not exist, is not numeric, or has nulls.
        """
        caller = f"history({self.column!r})"
        values = column_of(table, self.column, caller)
        if not (pt.is_integer(values.type) or pt.is_floating(values.type)):
            raise PipelineError(
                f"{caller}: a column of {values.type}", fix="histories need numbers: map the column first"
            )
        if values.null_count:
            raise PipelineError(f"{caller}: {values.null_count} null(s)", fix="fill or drop them first")
        counts = np.ones(len(values), dtype=bool) if self.where is None else _flags(table, self.where, caller)
        kept = numbers(values)[counts]
        before = np.cumsum(counts) - counts  # number of counted events before each row
        ends = before[run_start(sessions)] if self.at == "session" else before
        starts = np.maximum(before[run_start(users)], ends - self.n)
        return Slices(kept, starts, ends - starts)


def history(
    column: str,
    n: int,
    at: Literal["session", "event"] = "session",
    *,
    into: str | None = None,
    where: str | None = None,
) -> History:
    """Define a column of lists: the user's last ``n`` values of ``column`` before each row, oldest first.

    Args:
        column: a numeric column, such as item ids.
        n: maximum length. Lists are shorter while the user has fewer earlier values, and empty at first.
        at: "session" uses values before the session began, the same in all its rows; "event" values before the row.
        into: the column to write, by default ``hist_`` followed by the column's name.
        where: a column; only rows in which it is true (or not 0) count, such as a label for clicks.

    Raises:
        PipelineError: ``at`` is invalid, or ``n`` is below 1.

    Examples:
        >>> import pyarrow as pa
        >>> events = pa.table({"user": [1, 1, 1], "ts": [0, 60, 9999], "item": [7, 8, 9]})
        >>> add_sessions(events, "user", "ts", gap=30, histories=[history("item", 2)])["hist_item"].to_pylist()
        [[], [], [7, 8]]
        >>> add_sessions(events, "user", "ts", gap=30, histories=[history("item", 2, "event")])["hist_item"].to_pylist()
        [[], [7], [7, 8]]
    """
    if at not in ("session", "event"):
        raise invalid_call(f"history(at={at!r})", fix='"session" or "event"')
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise invalid_call(f"history(n={n!r})", fix="give an integer of at least 1")
    return History(column, n, at, into or f"hist_{column}", where)


def add_sessions(
    table: Any,
    user: str,
    time: str,
    *,
    gap: float | None = None,
    unit: str = "s",
    histories: Sequence[History] = (),
    into: str = "session_id",
) -> Any:
    """Sort a table by user and time, and add a session number to each row, and histories.

    A session ends when its user does nothing for more than ``gap`` minutes. Rows with equal times keep their order.

    Args:
        table: an Arrow, polars or pandas table of events. For logs that do not fit in memory, see
            ``cluster(gap=..., histories=...)``.
        user, time: names of columns without nulls; times are timestamps, or numbers in ``unit``.
        gap: minutes of inactivity after which a session ends; None makes all rows of a user one session.
        unit: unit of times that are plain numbers: "s", "ms", "us" or "ns".
        histories: definitions from ``history``.
        into: the column for session numbers, int64, counted from 0 in the order of the result.

    Returns:
        The events as an Arrow table, with the new columns.

    Raises:
        PipelineError: a column does not exist or has nulls, or the gap is not positive.
    """
    table = as_table(table, "add_sessions")
    users = column_of(table, user, "add_sessions")
    times = column_of(table, time, "add_sessions")
    for name, column in ((user, users), (time, times)):
        if column.null_count:
            raise PipelineError(f"add_sessions: column {name!r} is null in a row", fix="fill or drop those rows first")
    order = time_order(users, times)
    table = take_rows(table, order)
    first, new = session_begins(codes_of(users)[order], times.take(pa.array(order)), gap, unit, time)
    for name, lists in history_columns(table, first, new, histories).items():
        table = with_column(table, name, lists)
    return with_column(table, into, pa.array(np.cumsum(new) - 1))


def time_order(keys: pa.Array, times: pa.Array) -> Ints:
    """Return row indices grouped by key and sorted by time; rows with equal times keep their order."""
    return np.lexsort((ordinals(times), codes_of(keys))).astype(np.int64)


def session_begins(users: Ints, times: pa.Array, gap: float | None, unit: str, name: str) -> tuple[Flags, Flags]:
    """Return two masks: which rows are the first of their user, and which are the first of a session."""
    first = starts_run(users)
    if gap is None:
        return first, first
    if not gap > 0:
        raise invalid_call(f"gap={gap!r}: must be above 0 (minutes)")
    limit = gap * per_minute(times, unit, name)
    passed = np.diff(ordinals(times), prepend=0)
    return first, first | (passed > limit)


def history_columns(table: Any, users: Flags, sessions: Flags, histories: Sequence[History]) -> dict[str, pa.Array]:
    """Return the columns that the histories add."""
    return {made.into: made.slices(table, users, sessions).plain() for made in histories}


def with_column(table: Any, name: str, column: pa.Array) -> Any:
    """Return the table with one more column.

    Raises:
        PipelineError: a column with this name exists.
    """
    if name in table.column_names:
        raise PipelineError(f"there is a column {name!r} already", fix="choose another name with into=")
    return table.append_column(name, column)


def _flags(table: Any, name: str, caller: str) -> Flags:
    column = column_of(table, name, caller)
    if not (pt.is_boolean(column.type) or pt.is_integer(column.type)):
        raise PipelineError(f"{caller}: where={name!r} is a column of {column.type}", fix="booleans or integers")
    flags = column if pt.is_boolean(column.type) else pc.not_equal(column, 0)
    return np.asarray(pc.fill_null(flags, False).to_numpy(zero_copy_only=False))
