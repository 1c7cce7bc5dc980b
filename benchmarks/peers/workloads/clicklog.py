"""A click log to jagged tensors: half the columns, a filter, gaps filled, log1p, lists cut and hashed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.rebatch import rebatched
from benchmarks.peers.workload import SEED, Array, Chunks, Row, Workload

DENSE = tuple(f"d{i}" for i in range(13))
LISTS = tuple(f"c{i}" for i in range(20))
DENSE_READ, LISTS_READ = DENSE[:7], LISTS[:10]
READ = ("id", "label", *DENSE_READ, *LISTS_READ)
LONGEST, TABLE = 8, 1_000_003
LEAST = -0.5  # d0 must be above: two thirds of the rows
GROUP, FILE_ROWS = 32_768, 131_072


class ClickLog(Chunks):
    """A chunk is a row group."""

    batch = 4096
    compared = ("label", *DENSE_READ, *LISTS_READ)

    @cached_property
    def files(self) -> list[tuple[str, Any]]:
        """Paths and metadata, in order."""
        import pyarrow.parquet as pq

        paths = sorted(str(path) for path in (self.path / "log").glob("*.parquet"))
        return [(path, pq.read_metadata(path)) for path in paths]

    @cached_property
    def groups(self) -> list[tuple[int, int]]:
        return [(f, g) for f, (_, metadata) in enumerate(self.files) for g in range(metadata.num_row_groups)]

    def __len__(self) -> int:
        return len(self.groups)

    def table(self, i: int, columns: Sequence[str] = READ) -> Any:
        """Columns of row group ``i``."""
        import pyarrow.parquet as pq

        file, group = self.groups[i]
        path, metadata = self.files[file]
        with pq.ParquetFile(path, metadata=metadata, memory_map=True) as opened:
            return opened.read_row_group(group, columns=list(columns), use_threads=False)

    def chunk(self, i: int) -> dict[str, Array]:
        return work_on(self.table(i))

    def assemble(self, results: Iterable[dict[str, Array]]) -> Iterator[dict[str, Array]]:
        return rebatched(results, self.batch)

    def expected(self) -> Array:
        tables = [self.table(i, ["id", "d0", "label"]) for i in range(len(self))]
        kept = [t["id"].to_numpy()[wanted(t)] for t in tables]
        return np.concatenate(kept)

    def reference(self, row: int) -> Row:
        """Manually, value by value."""
        file_row = row
        for i in range(len(self)):
            file, group = self.groups[i]
            count = self.files[file][1].row_group(group).num_rows
            if file_row < count:
                found = self.table(i).slice(file_row, 1).to_pylist()[0]
                break
            file_row -= count
        made: Row = {"label": np.float32(found["label"])}
        for name in DENSE_READ:
            made[name] = np.float32(np.log1p(np.float32(max(found[name] or 0.0, 0.0))))
        for name in LISTS_READ:
            made[name] = np.array([v % TABLE for v in (found[name] or [])[:LONGEST]], dtype=np.int64)
        return made


def wanted(table: Any) -> Array:
    """Which rows are kept, as booleans."""
    import pyarrow.compute as pc

    keep = pc.and_(pc.is_valid(table["label"]), pc.greater(table["d0"], LEAST))
    return np.asarray(pc.fill_null(keep, fill_value=False))


def work_on(table: Any) -> dict[str, Array]:
    """Rows of the file to columns of the batch: pyarrow for the filter, NumPy on its buffers for the rest."""
    import pyarrow as pa

    return columns_of(table.filter(pa.array(wanted(table))).combine_chunks())


def columns_of(table: Any) -> dict[str, Array]:
    """What is done to the rows that are kept; of each column one chunk."""
    made = {"id": table["id"].to_numpy(), "label": table["label"].to_numpy()}
    for name in DENSE_READ:
        column = table[name].fill_null(0.0).to_numpy()
        made[name] = np.log1p(np.maximum(column, np.float32(0)))
    for name in LISTS_READ:
        made[f"{name}/values"], made[f"{name}/offsets"] = cut_and_hashed(table[name])
    return made


def cut_and_hashed(column: Any) -> tuple[Array, Array]:
    """Values and offsets of a list column, the first ``LONGEST`` of each list, modulo ``TABLE``."""
    if not column.num_chunks:
        return np.zeros(0, np.int64), np.zeros(1, np.int64)
    lists = column.chunk(0)
    offsets = lists.offsets.to_numpy()
    values = lists.values.to_numpy()
    lengths = np.diff(offsets)
    if lists.null_count:
        lengths[np.asarray(lists.is_null())] = 0
    short = np.minimum(lengths, LONGEST)
    ends = np.concatenate([[0], np.cumsum(short, dtype=np.int64)])
    places = np.repeat(offsets[:-1] - ends[:-1], short) + np.arange(ends[-1])
    return values[places] % TABLE, ends


def prepare(folder: Path, rows: int, _own: Path | None) -> None:
    """Files of 131,072 rows."""
    import pyarrow.parquet as pq

    place = folder / "log"
    place.mkdir()
    for number, start in enumerate(range(0, rows, FILE_ROWS)):
        table = log(start, min(FILE_ROWS, rows - start))
        pq.write_table(table, place / f"{number:04d}.parquet", row_group_size=GROUP)


def log(start: int, rows: int) -> Any:
    """Rows of the log: gaps in every 20th number, lists of 0 to 14 ids, a few missing."""
    import pyarrow as pa

    rng = np.random.default_rng([SEED, start])
    columns: dict[str, Any] = {
        "id": np.arange(start, start + rows),
        "label": pa.array((rng.random(rows) < 0.3).astype(np.float32), mask=rng.random(rows) < 0.02),
    }
    for name in DENSE:
        columns[name] = pa.array(rng.normal(0, 3, rows).astype(np.float32), mask=rng.random(rows) < 0.05)
    for name in LISTS:
        lengths = np.minimum(rng.geometric(0.3, rows) - 1, 14)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        values = (rng.random(offsets[-1]) ** 6 * 5_000_000).astype(np.int64)  # few ids often, many seldom
        columns[name] = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values))
    return pa.table(columns)


def pipeline(work: Any, _setting: str) -> Any:
    import polars as pl

    import cedar
    from cedar import col

    dense = {name: col(name).fill_null(0.0).clip(0.0).log1p() for name in DENSE_READ}
    lists = {name: col(name).list.head(LONGEST).list.eval(pl.element() % TABLE) for name in LISTS_READ}
    return (
        cedar.read_parquet(os.path.join(work.folder, "log"))
        .filter(col("label").is_not_null())
        .filter(col("d0") > LEAST)
        .with_columns(**dense)
        .with_columns(**lists)
        .select("id", "label", *DENSE_READ, *LISTS_READ)
        .batch(work.batch, last="keep")
    )


def scan(work: ClickLog, chunks: Sequence[int]) -> int:
    """The rows that are kept are counted, as everywhere."""
    return sum(int(wanted(work.table(i)).sum()) for i in chunks)


WORKLOAD = Workload(
    name="clicklog",
    title="click log to jagged tensors",
    unit="rows",
    rows=(9000, 1_048_576, 4_194_304),
    work=ClickLog,
    prepare=prepare,
    pipeline=pipeline,
    limits={"scan": scan},
    tolerance=1e-6,
)
