"""Splits rows into training and evaluation data, by time or by a hash, so that no session is in both."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.types as pt

from cedar import Pipeline, col
from cedar.core.errors import PipelineError, invalid_call, missing_column
from cedar.operators.recsys.ids import SigridHash
from cedar.operators.transform import BadValues, Transform

_BUCKETS = 1_000_000
_DRAW_COLUMN = "__split"


def split_by_time(
    pipeline: Pipeline, *, time: str, at: Any, session: str | None = None, executor: Any = "auto"
) -> tuple[Pipeline, Pipeline]:
    """Return two pipelines: rows before the time ``at``, and the other rows.

    If ``session`` is set, a session with rows on both sides goes to the second pipeline as a whole, so that no session
    is in both. To find such sessions, cedar reads the columns of sessions and times once, and keeps the keys of
    sessions in memory.

    Args:
        pipeline: a pipeline of rows, not batches.
        time: the column that is compared with ``at``. Rows with null times are in neither pipeline; if ``session`` is
            set, they are an error.
        at: the first time of the second pipeline, a number or a ``datetime``.
        session: the column that identifies sessions.
        executor: executor for the pass that finds sessions on both sides.

    Raises:
        PipelineError: a column does not exist; or it has nulls, and ``session`` is set.

    Examples:
        >>> import cedar
        >>> rows = cedar.from_items([{"s": s, "ts": ts} for s, ts in [(1, 0), (1, 5), (2, 9), (2, 12)]])
        >>> [[row["ts"] for row in part] for part in split_by_time(rows, time="ts", at=10, session="s")]
        [[0, 5], [9, 12]]
    """
    _check(pipeline, time, *([session] if session is not None else []))
    before = col(time) < at
    if session is None:
        return pipeline.filter(before), pipeline.filter(col(time) >= at)
    both = pl.Series(_sessions_on_both_sides(pipeline, time, at, session, executor))
    if not len(both):
        return pipeline.filter(before), pipeline.filter(col(time) >= at)
    across = col(session).is_in(both.implode())
    return pipeline.filter(before & ~across), pipeline.filter((col(time) >= at) | (across & before))


def _sessions_on_both_sides(pipeline: Pipeline, time: str, at: Any, session: str, executor: Any) -> pa.Array:
    """Return the keys of sessions that have rows on both sides."""
    sides: dict[bool, list[pl.Series]] = {True: [], False: []}
    rows = (
        pipeline.select(session, time)
        .with_columns(**{_DRAW_COLUMN: col(time) < at})
        .drop(time)
        .batch(65_536, last="keep")
    )
    # Each rank needs the sessions of all.
    with rows.loader(format="arrow", executor=executor, rank=0, world=1, subgroup=True) as loader:
        for batch in loader:
            _refuse_nulls(batch, session, time)
            frame = pl.DataFrame({"session": pl.Series(batch[session]), "before": pl.Series(batch[_DRAW_COLUMN])})
            for side, values in sides.items():
                values.append(frame.filter(pl.col("before") == side)["session"].drop_nulls().unique())
    early, late = (pl.concat(values).unique() if values else pl.Series([], dtype=pl.Int64) for values in sides.values())
    straddling = early.filter(early.is_in(late.implode())).sort().to_arrow()
    return straddling.cast(pa.large_string()) if pt.is_string_view(straddling.type) else straddling


def _refuse_nulls(batch: Any, session: str, time: str) -> None:
    for name, shown in ((session, session), (_DRAW_COLUMN, time)):
        if batch[name].null_count:
            raise PipelineError(
                f"split_by_time: column {shown!r} is null in {batch[name].null_count} row(s)",
                fix="fill or filter those rows first",
            )


def split_by_session(
    pipeline: Pipeline, *, session: str, evaluation: float = 0.1, seed: int = 0
) -> tuple[Pipeline, Pipeline]:
    """Return two pipelines: training rows, and the rows of a share ``evaluation`` of all sessions, chosen by a hash.

    The choice depends only on the session's key and the seed, not on order, files, epochs or other sessions.

    Args:
        pipeline: a pipeline of rows, not batches.
        session: a column of integers or strings, without nulls.
        evaluation: share of the sessions for evaluation, from 0 to 1.
        seed: a different seed chooses different sessions.

    Raises:
        PipelineError: the column does not exist or has another type, or the share is out of range.
        RowError: while running, a session is null.

    Examples:
        >>> import cedar
        >>> rows = cedar.from_items([{"s": i // 3} for i in range(3000)])
        >>> train, evaluation = split_by_session(rows, session="s", evaluation=0.2)
        >>> train.count() + evaluation.count(), 500 < evaluation.count() < 700, evaluation.count() % 3
        (3000, True, 0)
    """
    if not 0 <= evaluation <= 1:
        raise invalid_call(f"split_by_session(evaluation={evaluation!r}): must be from 0 to 1")
    _check(pipeline, session)
    kind = pipeline.schema.get(session)
    plain = isinstance(kind, pa.DataType) and (pt.is_integer(kind) or pt.is_large_string(kind))
    if kind != "?" and not plain:
        raise PipelineError(f"split_by_session: column {session!r} is {kind}", fix="integers or strings")
    drawn = pipeline.map(SessionDraw(seed), session, into=_DRAW_COLUMN)
    limit = round(evaluation * _BUCKETS)
    return drawn.filter(col(_DRAW_COLUMN) >= limit).drop(_DRAW_COLUMN), drawn.filter(col(_DRAW_COLUMN) < limit).drop(
        _DRAW_COLUMN
    )


@dataclass(frozen=True)
class SessionDraw(Transform):
    """Maps a key to a hash below a million, the same on every machine. A null key raises an error.

    Examples:
        >>> SessionDraw(0)("a") == SessionDraw(0)("a") != SessionDraw(1)("a")
        True
    """

    seed: int = 0

    def result(self, *types: Any) -> Any:
        (kind,) = types
        if not (pt.is_integer(kind) or pt.is_large_string(kind)):
            raise self.unfit(kind, "integers or strings")
        return pa.int64()

    def columns(self, *columns: Any) -> Any:
        (keys,) = columns
        if keys.null_count:
            rows = np.flatnonzero(keys.is_null().to_numpy(zero_copy_only=False)).tolist()
            raise BadValues(dict.fromkeys(rows, "the session is null"), "fill or filter those rows first")
        if pt.is_integer(keys.type):
            return SigridHash(self.seed, _BUCKETS).columns(keys)
        encoded = keys.dictionary_encode()
        draws = pa.array([self._draw(key) for key in encoded.dictionary.to_pylist()], pa.int64())
        return draws.take(encoded.indices)

    def _draw(self, key: str) -> int:
        text = hashlib.blake2b(key.encode(), digest_size=8, key=np.int64(self.seed).tobytes()).digest()
        return int.from_bytes(text, "little") % _BUCKETS


def _check(pipeline: Pipeline, *names: str) -> None:
    known = pipeline.schema
    for name in names:
        if "?" not in known and name not in known:
            raise missing_column(name, list(known), "split")
