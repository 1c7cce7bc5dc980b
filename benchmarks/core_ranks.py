"""How much more than its share a rank of eight decodes: the ranks run one after the other on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import cedar
from benchmarks.harness import OUT, Figure, Form, at_most

_WORLD, _GROUP, _BATCH = 8, 100_000, 4096


def measure(form: Form) -> list[Figure]:
    groups = form.pick(256, 64, 8)
    figures = []
    for width in (1, 16):
        path = _file(groups, width)
        shares = [_share(path, rank, groups) for rank in range(_WORLD)]
        note = f"the most of {len(shares)} ranks; row groups of {_GROUP:,}, batches of {_BATCH:,}, a shuffle"
        what = f"rows decoded by a rank of {_WORLD} / its share: {groups} row groups, {width} column(s)"
        figures.append(at_most(what, 1.3, [max(shares)], "x", how="emulated", note=note))
    return figures


def _share(path: str, rank: int, groups: int) -> float:
    loader: Any = cedar.read_parquet(path).shuffle(seed=1).batch(_BATCH, last="drop").loader(rank=rank, world=_WORLD)
    rows = sum(len(batch["c0"]) for batch in loader)
    expected = groups * _GROUP // _BATCH // _WORLD * _BATCH
    if rows != expected:
        raise AssertionError(f"rank {rank} got {rows} rows, not {expected}")
    return float(loader.report().rows_read) / (groups * _GROUP / _WORLD)


def _file(groups: int, width: int) -> str:
    """Columns of one value each: written and decoded quickly, and as wide in memory as any."""
    path = Path(OUT) / "data" / f"ranks-{groups}-{width}.parquet"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        table = pa.table({f"c{i}": np.arange(_GROUP) % 1000 / 7 for i in range(width)})
        part = path.with_suffix(".part")
        with pq.ParquetWriter(part, table.schema) as writer:
            for _ in range(groups):
                writer.write_table(table, row_group_size=_GROUP)
        part.rename(path)
    return str(path)
