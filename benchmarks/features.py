"""The Parquet files of the benchmarks: 13 floats with gaps, 20 lists of ids, a label; and the same work, thrice.

The work: drop rows without a label, fill the gaps with 0, log1p, clip the lists to 10 ids, ids modulo a table's size,
batches of 4,096, tensors out (lists as values and offsets).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.harness import OUT

FLOATS = tuple(f"f{i}" for i in range(13))
LISTS = tuple(f"l{i}" for i in range(20))
GROUP = 100_000  # rows
BATCH = 4096
CLIP = 10
TABLE = 1_000_003  # rows of an embedding table
Batch: TypeAlias = dict[str, Any]  # column to tensor, or to (values, offsets)

# ---- data ------------------------------------------------------------------------------------------------------------


def features(rows: int, *, distinct: int = 2, group: int = GROUP) -> list[str]:
    """Files of one row group each, ``rows`` in all; made once, kept in benchmarks/out/data.

    ``distinct`` of them are generated, the others are hard links: decoding costs the same, making them does not.
    """
    count = max(1, rows // group)
    folder = OUT / "data" / f"features-{group}-{min(distinct, count)}-{count}"
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for number in range(count):
            path = folder / f"{number:05d}.parquet"
            if number < distinct:
                pq.write_table(feature_table(group, seed=number), path, row_group_size=group)
            else:
                os.link(folder / f"{number % distinct:05d}.parquet", path)
        (folder / "done").touch()
    return sorted(str(path) for path in folder.glob("*.parquet"))


def feature_table(rows: int, seed: int) -> pa.Table:
    """A click log as recommendation models read it: a quarter of the floats null, 8 ids per list on average."""
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {"label": _with_gaps(rng, rng.integers(0, 2, rows), 0.03)}
    for name in FLOATS:
        columns[name] = _with_gaps(rng, rng.exponential(20.0, rows), 0.25)
    for i, name in enumerate(LISTS):
        lengths = np.minimum(rng.geometric(1 / 9, rows) - 1, 64)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        ids = (rng.random(offsets[-1]) ** 3 * 10 ** (3 + i % 5)).astype(np.int64) * 2_654_435_761 % (1 << 40)
        columns[name] = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(ids))
    return pa.table(columns)


def _with_gaps(rng: np.random.Generator, values: Any, share: float) -> pa.Array:
    return pa.array(values, mask=rng.random(len(values)) < share)


# ---- cedar -----------------------------------------------------------------------------------------------------------


def prepared(files: Sequence[str]) -> Any:
    """The pipeline, up to the batch."""
    import polars as pl

    import cedar
    from cedar import col

    floats = [col(name).fill_null(0).log1p() for name in FLOATS]
    lists = [col(name).list.head(CLIP).list.eval(pl.element() % TABLE) for name in LISTS]
    return cedar.read_parquet(list(files)).filter(col("label").is_not_null()).with_columns(*floats, *lists)


def cedar_batches(files: Sequence[str], workers: int = 2, executor: str = "threads") -> Any:
    """The loader of the pipeline."""
    return prepared(files).batch(BATCH, last="keep").loader(executor=executor, workers=workers, format="torch")


# ---- manually
# ---------------------------------------------------------------------------------------------------------


def hand_batches(files: Sequence[str]) -> Iterator[Batch]:
    """A plain loop over row groups, one thread: pyarrow.compute on whole columns, batches are views."""
    import torch

    torch.set_num_threads(1)
    rest: dict[str, Any] = {}
    for path in files:
        with pq.ParquetFile(path) as file:
            for number in range(file.num_row_groups):
                columns = _worked(file.read_row_group(number, use_threads=False))
                if rest:
                    columns = {name: _joined(rest[name], column) for name, column in columns.items()}
                rows = len(columns["label"])
                whole = rows - rows % BATCH
                for start in range(0, whole, BATCH):
                    yield {name: _tensors(column, start, start + BATCH) for name, column in columns.items()}
                rest = {name: _piece(column, whole, rows) for name, column in columns.items()}
    if rest and len(rest["label"]):
        yield {name: _tensors(column, 0, len(rest["label"])) for name, column in rest.items()}


def _worked(table: pa.Table) -> dict[str, Any]:
    """The row group as arrays: NumPy for numbers, (values, offsets) for lists."""
    table = table.filter(pc.is_valid(table["label"]))
    columns: dict[str, Any] = {"label": _flat(table["label"]).to_numpy()}
    for name in FLOATS:
        columns[name] = np.log1p(pc.fill_null(_flat(table[name]), 0.0).to_numpy())
    for name in LISTS:
        columns[name] = _clipped(_flat(table[name]))
    return columns


def _flat(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _clipped(lists: pa.Array) -> tuple[Any, Any]:
    """The first ids of each list, modulo the table: by NumPy, which is faster here than list_slice."""
    offsets = lists.offsets.to_numpy()
    values = lists.values.to_numpy()
    lengths = np.minimum(np.diff(offsets), CLIP)
    cut = np.zeros(len(offsets), dtype=np.int64)
    np.cumsum(lengths, out=cut[1:])
    index = np.arange(cut[-1]) + np.repeat(offsets[:-1] - cut[:-1], lengths)
    return values[index] % TABLE, cut


def _joined(first: Any, second: Any) -> Any:
    if not isinstance(first, tuple):
        return np.concatenate([first, second])
    values, offsets = np.concatenate([first[0], second[0]]), second[1][1:] + first[1][-1]
    return values, np.concatenate([first[1], offsets])


def _piece(column: Any, start: int, stop: int) -> Any:
    if not isinstance(column, tuple):
        return column[start:stop]
    values, offsets = column
    bounds = offsets[start : stop + 1]
    return values[bounds[0] : bounds[-1]], bounds - bounds[0]


def _tensors(column: Any, start: int, stop: int) -> Any:
    import torch

    piece = _piece(column, start, stop)
    if isinstance(piece, tuple):
        return torch.from_numpy(piece[0]), torch.from_numpy(piece[1])
    return torch.from_numpy(piece) if piece.flags.writeable else torch.utils.dlpack.from_dlpack(pa.array(piece))


# ---- torch DataLoader ------------------------------------------------------------------------------------------------


def dataloader_batches(files: Sequence[str], workers: int) -> Any:
    """The same loop in an IterableDataset whose workers share the files, as torch documents it."""
    from torch.utils import data

    class Rows(data.IterableDataset[Batch]):
        def __iter__(self) -> Iterator[Batch]:
            info = data.get_worker_info()
            return hand_batches(files if info is None else files[info.id :: info.num_workers])

    return data.DataLoader(Rows(), batch_size=None, num_workers=workers)


# ---- what comes out --------------------------------------------------------------------------------------------------


def plain(batch: Batch) -> Batch:
    """A batch of any contender as NumPy arrays, lists as (values, offsets)."""
    out: Batch = {}
    for name, value in batch.items():
        parts = (value.values, value.offsets) if hasattr(value, "offsets") else value
        out[name] = tuple(part.numpy() for part in parts) if isinstance(parts, (tuple, list)) else parts.numpy()
    return out


def same(a: Batch, b: Batch) -> bool:
    """Whether two batches hold the same rows in the same order; floats within an ulp or so of two log1p."""
    return a.keys() == b.keys() and all(_equal(a[name], b[name]) for name in a)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, tuple):
        return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(np.allclose(a, b, rtol=1e-14, atol=0)) if a.dtype.kind == "f" else bool(np.array_equal(a, b))


class Sums:
    """What a set of batches adds up to, in whatever order its rows came."""

    def __init__(self) -> None:
        self.rows = 0
        self.totals: dict[str, float] = {}

    def add(self, batch: Batch) -> None:
        self.rows += len(batch["label"])
        for name, column in batch.items():
            values, offsets = column if isinstance(column, tuple) else (column, None)
            self._plus(name, float(values.sum()))
            if offsets is not None:
                lengths = np.diff(offsets)
                self._plus(f"{name} weighted", float((values * np.repeat(lengths, lengths)).sum()))

    def _plus(self, name: str, value: float) -> None:
        self.totals[name] = self.totals.get(name, 0.0) + value

    def same(self, other: Sums) -> bool:
        names = self.totals.keys() == other.totals.keys()
        return (
            names
            and self.rows == other.rows
            and all(np.isclose(total, other.totals[name], rtol=1e-12) for name, total in self.totals.items())
        )


def remove_data() -> None:
    """Files made by earlier runs."""
    shutil.rmtree(Path(OUT) / "data", ignore_errors=True)
