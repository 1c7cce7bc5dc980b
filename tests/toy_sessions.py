"""A small log of sessions: rows that repeat their lists, as production logs do."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def sessions(
    rows: int,
    samples: int,
    repeats: float,
    length: int = 6,
    features: tuple[str, ...] = ("a", "b"),
    seed: int = 0,
    vary: bool = False,
) -> pa.Table:
    """A clustered log: ``samples`` rows a session, whose lists change together with probability 1 - ``repeats``.

    ``vary``: that is their mean; a session then has up to twice as many.
    """
    rng = np.random.default_rng(seed)
    session = np.arange(rows) // samples
    if vary:
        session = np.repeat(np.arange(rows), rng.integers(1, 2 * samples, rows))[:rows]
    new = np.ones(rows, dtype=bool)
    new[1:] = (np.diff(session) != 0) | (rng.random(rows - 1) >= repeats)
    version = np.cumsum(new) - 1
    columns: dict[str, pa.Array] = {"session": pa.array(session), "row": pa.array(np.arange(rows))}
    for name in features:
        lengths = rng.integers(max(length - 2, 0), length + 3, version[-1] + 1)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        values = pa.array(rng.integers(0, 10**6, offsets[-1]))
        lists = pa.LargeListArray.from_arrays(pa.array(offsets), values)
        columns[name] = lists.take(pa.array(version))
    return pa.table(columns)


def interleaved(table: pa.Table, at_once: int) -> pa.Table:
    """The rows of ``at_once`` sessions mixed in turn, as they come in by time."""
    session = table["session"].to_numpy()
    within = np.arange(len(session)) - np.searchsorted(session, session)
    return table.take(pa.array(np.lexsort((session, within, session // at_once))))
