"""A synthetic click log: sessions, list features, dense features with gaps, a label that can be learned.

How much a log repeats, and how well its label can be known, is in the hand of ``cedar.datasets.clicklog``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cedar.core.block import Block
from cedar.core.columns import Column
from cedar.core.cursor import Keys
from cedar.core.errors import PipelineError, user_site
from cedar.datasets.sinks import write_parquet

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_USERS, _ITEMS, _CATEGORIES, _TAGS, _DENSE = 50_000, 5_000, 40, 300, 13
_WHOLE = ("session_id", "user_id", "ts", "item_id", "category", "hist_items", "tags", "d0", "label")  # without nulls
_HISTORY = 50  # most items in a history
_START = 1_704_067_200  # 2024-01-01, seconds


@dataclass(frozen=True)
class _World:
    """What the log is drawn from, the same in every file."""

    item_effect: Floats
    item_category: Ints
    popularity: Floats  # cumulative, of items
    dense_weights: Floats


def _world(seed: int) -> _World:
    rng = np.random.default_rng([seed, 0])
    weights = 1.0 / np.arange(1, _ITEMS + 1) ** 0.8
    popularity = np.cumsum(rng.permutation(weights))
    return _World(
        rng.normal(0.0, 0.9, _ITEMS),
        rng.integers(0, _CATEGORIES, _ITEMS),
        popularity / popularity[-1],
        rng.normal(0.0, 0.5, _DENSE),
    )


def _items(world: _World, rng: np.random.Generator, n: int) -> Ints:
    return np.searchsorted(world.popularity, rng.random(n)).astype(np.int64)


def _lengths_to_offsets(lengths: Ints) -> Ints:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _sessions(rng: np.random.Generator, rows: int) -> Ints:
    """The session of each row, 0, 1, ...; sessions have 1 to about 40 rows, 8 on average."""
    lengths = rng.geometric(1 / 8, size=max(1, rows // 4))
    while lengths.sum() < rows:
        lengths = np.concatenate([lengths, rng.geometric(1 / 8, size=rows // 8 + 1)])
    return np.repeat(np.arange(len(lengths)), lengths)[:rows]


def _clicks(world: _World, seed: int, file: int, rows: int) -> dict[str, Column]:
    """One file: rows in order of time, so that sessions interleave; no session is in two files."""
    rng = np.random.default_rng([seed, 1, file])
    session = _sessions(rng, rows)
    count = int(session[-1]) + 1
    began = rng.integers(0, 3600, count)
    ts = _START + 3600 * file + began[session] + rng.integers(0, 600, rows)
    order = np.lexsort((np.arange(rows), ts))
    session, ts = session[order], ts[order]

    item = _items(world, rng, rows)
    category = world.item_category[item]
    history, share = _history(world, rng, session, count, category)
    dense = rng.normal(size=(_DENSE, rows))
    logit = world.dense_weights @ dense + world.item_effect[item] + 3.0 * (share - 1 / _CATEGORIES) - 1.0
    label = rng.random(rows) < 1 / (1 + np.exp(-logit))

    columns: dict[str, Column] = {
        "session_id": pa.array(session + (file << 32)),
        "user_id": pa.array(rng.integers(0, _USERS, count)[session]),
        "ts": pa.array(ts),
        "item_id": pa.array(item),
        "category": pa.array(category),
        "hist_items": history,
        "tags": _tags(rng, rows),
    }
    for i in range(_DENSE):
        gaps = rng.random(rows) < 0.02 * i  # d0 has none, d12 a quarter
        columns[f"d{i}"] = pa.array(_skewed(dense[i], i), mask=gaps)
    columns["label"] = pa.array(label.astype(np.int8))
    return columns


def _skewed(values: Floats, i: int) -> npt.NDArray[np.float32]:
    """Even columns are counts with a long tail, as in real logs; odd ones are centred."""
    return np.asarray(np.expm1(values + 2.0).clip(0, None) if i % 2 == 0 else values, dtype=np.float32)


def _history(
    world: _World, rng: np.random.Generator, session: Ints, count: int, category: Ints
) -> tuple[pa.Array, Floats]:
    """Each session's history of 0 to 50 items, repeated in its rows; and what share of it is of the row's category."""
    lengths = np.minimum(rng.geometric(1 / 12, count) - 1, _HISTORY)
    favourite = rng.integers(0, _CATEGORIES, count)
    owner = np.repeat(np.arange(count), lengths)
    items = _items(world, rng, len(owner))
    # A third of a history is of the session's favourite category.
    by_category = np.argsort(world.item_category, kind="stable")
    sizes = np.bincount(world.item_category, minlength=_CATEGORIES)
    starts = np.cumsum(sizes) - sizes
    wanted = favourite[owner]
    liked = by_category[starts[wanted] + (rng.random(len(owner)) * sizes[wanted]).astype(np.int64)]
    items = np.where(rng.random(len(owner)) < 0.33, liked, items)

    per_category = np.bincount(owner * _CATEGORIES + world.item_category[items], minlength=count * _CATEGORIES).reshape(
        count, _CATEGORIES
    )
    share = per_category[session, category] / np.maximum(1, lengths[session])
    lists = pa.LargeListArray.from_arrays(pa.array(_lengths_to_offsets(lengths)), pa.array(items))
    return lists.take(pa.array(session)), share


def _tags(rng: np.random.Generator, rows: int) -> pa.Array:
    offsets = _lengths_to_offsets(rng.integers(0, 6, rows))
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(rng.integers(0, _TAGS, int(offsets[-1]))))


def _blocks(seed: int, rows: int, rows_per_file: int) -> Iterator[Block]:
    world = _world(seed)
    for file, start in enumerate(range(0, rows, rows_per_file)):
        count = min(rows_per_file, rows - start)
        yield Block(_clicks(world, seed, file, count), Keys(np.arange(start, start + count, dtype=np.int64)))


def write_clicks(
    url: str | os.PathLike[str],
    rows: int = 500_000,
    seed: int = 0,
    *,
    rows_per_file: int = 100_000,
    row_group_rows: int = 20_000,
) -> list[str]:
    """Write a synthetic click log as Parquet; returns the files' URLs.

    Columns: ``session_id``, ``user_id``, ``ts`` (seconds), ``item_id`` and ``category`` (int64); ``hist_items`` (0 to
    50, the same in all rows of a session) and ``tags`` (0 to 5), lists of int64; ``d0`` to ``d12``, float32, with up
    to a quarter of nulls; ``label``, int8. Rows stand in order of time. The label is drawn from a logistic model over
    the dense features, the item, and the share of the history that is of the item's category.

    Args:
        url: a directory that holds no Parquet files yet.
        rows: how many rows.
        seed: the same seed gives the same rows.
        rows_per_file: rows of a file; part of what fixes the rows.
        row_group_rows: rows of a row group.

    Raises:
        PipelineError: there are data files already, or a number is not positive.

    Example:
        >>> [url.rpartition("/")[2] for url in write_clicks("clicks", rows=1000, rows_per_file=600)]
        ['part-00000.parquet', 'part-00001.parquet']
    """
    numbers: dict[str, Any] = {"rows": rows, "rows_per_file": rows_per_file, "row_group_rows": row_group_rows}
    for name, value in numbers.items():
        if value < 1:
            raise PipelineError(f"write_clicks({name}={value}): at least 1", site=user_site())
    blocks = _blocks(seed, rows, rows_per_file)
    return write_parquet(
        blocks, url, row_group_rows=min(row_group_rows, rows_per_file), rows_per_file=rows_per_file, never_null=_WHOLE
    )
