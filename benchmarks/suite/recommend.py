"""Recommendation: a click log; gaps filled, histories cut and hashed, some categories kept, shuffled, in batches."""

from __future__ import annotations

from typing import Any

import polars as pl

import cedar
from cedar import col
from cedar.datasets.clicklog import ClickLog, write_sessions

TABLE = 1_000_003  # rows of an embedding table
DENSE = tuple(f"d{i}" for i in range(13))


def data(directory: str, rows: int, seed: int) -> None:
    log = ClickLog(samples=8, vary=True)
    write_sessions(directory, rows, seed, log=log, rows_per_file=min(rows, 50_000), row_group_rows=10_000)


def again(history: Any) -> int:
    """Items that come more than once."""
    return len(history) - len(set(history))


def make(directory: str, rows: int) -> cedar.Pipeline:
    dense = {name: col(name).fill_null(0.0).clip(0.0, 1000.0).log1p() for name in DENSE}
    hashed = {
        name: col(name).list.head(20).list.eval(pl.element() * 2_654_435_761 % TABLE) for name in ("hist_items", "tags")
    }
    return (
        cedar.read_parquet(directory)
        .map(again, "hist_items", into="again", dtype=int)
        .with_columns(**dense)
        .with_columns(**hashed)
        .with_columns(item_id=col("item_id") * 2_654_435_761 % TABLE, age=(col("ts") - 1_704_067_200) // 3600)
        .filter(col("category") < 10)
        .filter(col("d0").is_not_nan())
        .shuffle(seed=1)
        .select("item_id", "hist_items", "tags", "again", *DENSE, "label")
        .batch(256, last="keep")
    )
