"""Generate the files of a synthetic log: draw sessions, draw the rows of each session, sort the rows by time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cedar.core.columns import Column
from cedar.core.errors import invalid_call
from cedar.core.jagged import gather
from cedar.core.packages import extension
from cedar.datasets.clicklog.model import BayesAuc, World, affinity, world_of
from cedar.datasets.clicklog.spec import ITEM_LISTS, ClickLog, ListFeature, Written

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

_START = 1_704_067_200  # 2024-01-01, seconds
_HOUR = 3600


@dataclass(frozen=True)
class DrawnRows:
    """A file's rows, sorted by time, and the click probability of each row."""

    columns: dict[str, Column]
    probability: Floats
    label: npt.NDArray[np.int8]


@dataclass(frozen=True)
class _Rows:
    """Rows grouped by session and sorted by time within each session.

    Args:
        session: the session index of each row: 0, 1, ...
        first: whether the row is the first of its session.
    """

    session: Ints
    first: Flags

    @property
    def count(self) -> int:
        return int(self.session[-1]) + 1

    def __len__(self) -> int:
        return len(self.session)

    def versions(self, repeats: float, rng: np.random.Generator) -> Ints:
        """Return a version id per row: new at each session's start, else new with probability 1 - ``repeats``."""
        return np.cumsum(self.first | (rng.random(len(self)) >= repeats)) - 1


def draw_file(log: ClickLog, world: World, seed: int, file: int, rows: int) -> DrawnRows:
    """Draw the rows of one file, which covers one hour; no session spans two files."""
    rng = np.random.default_rng([seed, 1, file])
    drawn = _rows(log, rng, rows)
    ts = _times(log, drawn, rng) + _START + _HOUR * file
    order = np.lexsort((np.arange(rows), ts))

    item = world.items(rng, rows)
    columns: dict[str, Column] = {
        "session_id": pa.array(drawn.session[order] + (file << 32)),
        "user_id": pa.array(rng.integers(0, log.users, drawn.count)[drawn.session[order]]),
        "ts": pa.array(ts[order]),
        "item_id": pa.array(item[order]),
        "category": pa.array(world.category[item[order]]),
    }
    groups: dict[str, Ints] = {}
    liking = np.zeros(rows)
    for feature in log.lists:
        key = feature.group or f"\0{feature.name}"
        if key not in groups:
            groups[key] = drawn.versions(feature.repeats, rng)
        values, starts, lengths = _lists(feature, drawn, groups[key], world, rng)
        if feature.name == ITEM_LISTS:
            liking = affinity(world, values, starts, lengths, item)
        columns[feature.name] = _gathered(values, starts[order], lengths[order])
    for i in range(log.scalars):
        versions = drawn.versions(log.repeats, rng)
        columns[f"u{i}"] = pa.array(rng.integers(0, 1_000_000, versions[-1] + 1)[versions[order]])
    for i in range(log.item_scalars):
        columns[f"i{i}"] = pa.array(rng.integers(0, 100_000, rows))
    dense = rng.normal(size=(log.dense, rows)).astype(np.float32)
    for i in range(log.dense):
        columns[f"d{i}"] = pa.array(dense[i])
    logit = world.logit(dense, item[order], liking[order])
    probability = 1 / (1 + np.exp(-logit))
    label = (rng.random(rows) < probability).astype(np.int8)
    columns["label"] = pa.array(label)
    return DrawnRows(columns, probability, label)


def _rows(log: ClickLog, rng: np.random.Generator, rows: int) -> _Rows:
    if log.vary:
        lengths = rng.geometric(1 / log.samples, size=rows // log.samples + 1)
        while lengths.sum() < rows:
            lengths = np.concatenate([lengths, rng.geometric(1 / log.samples, size=len(lengths))])
        session = np.repeat(np.arange(len(lengths)), lengths)[:rows]
    else:
        session = np.arange(rows) // log.samples
    first = np.ones(rows, dtype=bool)
    first[1:] = np.diff(session) != 0
    return _Rows(session, first)


def _times(log: ClickLog, drawn: _Rows, rng: np.random.Generator) -> Ints:
    """Return each row's time in seconds: sessions start throughout the hour; their rows follow within a few minutes."""
    within = rng.random(len(drawn)) * log.minutes * 60
    within = within[np.lexsort((within, drawn.session))]
    last = max(1, int(_HOUR - log.minutes * 60))
    return (rng.integers(0, last, drawn.count)[drawn.session] + within).astype(np.int64)


def _lists(
    feature: ListFeature, drawn: _Rows, versions: Ints, world: World, rng: np.random.Generator
) -> tuple[Ints, Ints, Ints]:
    """Return (values, start of each row's list, length of each row's list) with rows grouped by session."""
    count = int(versions[-1]) + 1
    if not feature.shift:
        lengths = rng.poisson(feature.length, count)
        starts = np.cumsum(lengths) - lengths
        values = world.ids(feature, rng, int(lengths.sum()))
        return values, starts[versions], lengths[versions]
    began = versions[drawn.first]  # version of the first row of each session
    changes = np.diff(np.append(began, count)) - 1
    length = rng.poisson(feature.length, drawn.count)
    pool_sizes = length + changes * feature.shift
    base = np.cumsum(pool_sizes) - pool_sizes
    values = world.ids(feature, rng, int(pool_sizes.sum()))
    moved = (versions - began[drawn.session]) * feature.shift
    return values, base[drawn.session] + moved, length[drawn.session]


def _gathered(values: Ints, starts: Ints, lengths: Ints) -> pa.Array:
    """Gather the lists ``values[start : start + length]`` into a column."""
    edges = np.stack([starts, starts + lengths], axis=1).reshape(-1)
    picked, offsets = gather(values, edges, 2 * np.arange(len(starts)))
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(picked))


def write_sessions(
    url: str | os.PathLike[str],
    rows: int = 500_000,
    seed: int = 0,
    *,
    log: ClickLog | None = None,
    rows_per_file: int = 100_000,
    row_group_rows: int = 20_000,
) -> Written:
    """Write a synthetic click log as Parquet, sorted by time, so that the rows of different sessions interleave.

    Columns: ``session_id``, ``user_id``, ``ts`` (seconds), ``item_id`` and ``category`` (int64); the lists of the log
    (int64), by default ``hist_items`` and ``tags``; ``u0`` ... (int64), ids of the user; ``i0`` ... (int64), ids that
    are new in each row; ``d0`` ... (float32, no nulls); ``label`` (int8). Labels are drawn from a logistic model over
    the dense features, the item, and the similarity of the item to those in ``hist_items``.

    Args:
        url: a directory without Parquet files.
        rows: number of rows.
        seed: seed of all draws; the same seed, ``log`` and ``rows_per_file`` produce the same rows.
        log: the specification of the log; ``ClickLog()`` by default.
        rows_per_file: rows per file; each file covers one hour.
        row_group_rows: rows per row group.

    Raises:
        PipelineError: the directory has data files already, or a number is too small.

    Examples:
        >>> written = write_sessions("sessions", rows=2000, log=ClickLog(samples=4), rows_per_file=1500)
        >>> len(written.urls), written.rows, 0.6 < written.bayes_auc < 1.0
        (2, 2000, True)
    """
    numbers = {
        "rows": (rows, 1), "seed": (seed, 0), "rows_per_file": (rows_per_file, 1),
        "row_group_rows": (row_group_rows, 1),
    }  # fmt: skip
    for name, (value, least) in numbers.items():
        if value < least:
            raise invalid_call(f"write_sessions({name}={value}): must be at least {least}")
    best = BayesAuc()
    log = log or ClickLog()

    def tables() -> Iterator[pa.Table]:
        world = world_of(log, seed)
        for file, start in enumerate(range(0, rows, rows_per_file)):
            drawn = draw_file(log, world, seed, file, min(rows_per_file, rows - start))
            best.add(drawn.probability, drawn.label)
            yield pa.table(drawn.columns)

    urls = extension("lake.sinks").write_files(url, tables(), row_group_rows)
    return Written(tuple(urls), rows, best.rate, best.value)
