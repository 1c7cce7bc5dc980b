"""Writes a log file by file: memory holds one."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from cedar.core.block import Block
from cedar.core.cursor import Keys
from cedar.core.errors import PipelineError, user_site
from cedar.datasets.clicklog.drawing import draw_file
from cedar.datasets.clicklog.model import BayesAuc, world_of
from cedar.datasets.clicklog.spec import ClickLog, Written
from cedar.datasets.sinks import write_parquet


def write_sessions(
    url: str | os.PathLike[str],
    rows: int = 500_000,
    seed: int = 0,
    *,
    log: ClickLog | None = None,
    rows_per_file: int = 100_000,
    row_group_rows: int = 20_000,
) -> Written:
    """Write a synthetic click log as Parquet: rows in order of time, so that sessions interleave.

    Columns: ``session_id``, ``user_id``, ``ts`` (seconds), ``item_id`` and ``category`` (int64); the lists of the log
    (int64), by default ``hist_items`` and ``tags``; ``u0`` ... (int64), ids of the user; ``i0`` ... (int64), ids that
    are new in each row; ``d0`` ... (float32, no nulls); ``label`` (int8), drawn from a logistic model over the dense
    features, the item, and how much the item is like those in ``hist_items``.

    Args:
        url: a directory that holds no Parquet files yet.
        rows: how many rows.
        seed: the same seed, log and ``rows_per_file`` give the same rows.
        log: what it looks like, ``ClickLog()`` by default.
        rows_per_file: rows of a file, an hour each.
        row_group_rows: rows of a row group.

    Raises:
        PipelineError: there are data files already, or a number is not positive.

    Example:
        >>> written = write_sessions("sessions", rows=2000, log=ClickLog(samples=4), rows_per_file=1500)
        >>> len(written.urls), written.rows, 0.6 < written.bayes_auc < 1.0
        (2, 2000, True)
    """
    numbers = {"rows": rows, "rows_per_file": rows_per_file, "row_group_rows": row_group_rows}
    for name, value in numbers.items():
        if value < 1:
            raise PipelineError(f"write_sessions({name}={value}): at least 1", site=user_site())
    best = BayesAuc()
    log = log or ClickLog()
    blocks = _blocks(log, seed, rows, rows_per_file, best)
    urls = write_parquet(
        blocks, url, row_group_rows=min(row_group_rows, rows_per_file), rows_per_file=rows_per_file,
        never_null=log.columns(),
    )  # fmt: skip
    return Written(tuple(urls), rows, best.rate, best.value)


def _blocks(log: ClickLog, seed: int, rows: int, rows_per_file: int, best: BayesAuc) -> Iterator[Block]:
    world = world_of(log, seed)
    for file, start in enumerate(range(0, rows, rows_per_file)):
        count = min(rows_per_file, rows - start)
        drawn = draw_file(log, world, seed, file, count)
        best.add(drawn.probability, drawn.label)
        yield Block(drawn.columns, Keys(np.arange(start, start + count, dtype=np.int64)))
