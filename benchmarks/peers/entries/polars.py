"""polars, for tables alone: one lazy query. "collect": all of it, then slices; "batches": 32,768 rows as they come.

Lists leave as views of Arrow's memory.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.peers.entry import Entry, Epochs
from benchmarks.peers.rebatch import Piece, rebatched
from benchmarks.peers.workload import Work, Workload
from benchmarks.peers.workloads.clicklog import DENSE_READ, LEAST, LISTS_READ, LONGEST, TABLE

SLICE = 32_768


def query(pl: Any, work: Work) -> Any:
    """The whole work as one lazy frame."""
    col = pl.col
    dense = [col(name).fill_null(0.0).clip(0.0).log1p() for name in DENSE_READ]
    lists = [col(name).list.head(LONGEST).list.eval(pl.element() % TABLE) for name in LISTS_READ]
    frame = pl.scan_parquet(f"{work.folder}/log/*.parquet")
    frame = frame.filter(col("label").is_not_null() & (col("d0") > LEAST))
    return frame.select("id", "label", *dense, *lists)


def piece(frame: Any) -> Piece:
    """Columns as ndarrays, lists as values and offsets."""
    table = frame.rechunk().to_arrow(compat_level=importlib.import_module("polars").CompatLevel.oldest())
    made: Piece = {}
    for name in table.column_names:
        column = table[name].combine_chunks()
        if name in LISTS_READ:
            offsets = column.offsets.to_numpy()
            made[f"{name}/values"] = column.values.to_numpy()[offsets[0] : offsets[-1]]
            made[f"{name}/offsets"] = offsets - offsets[0]
        else:
            made[name] = column.to_numpy()
    return made


def run(_workload: Workload, work: Work, setting: str) -> Iterable[Any]:
    pl = importlib.import_module("polars")

    def pieces() -> Iterator[Piece]:
        if setting == "collect":
            for frame in query(pl, work).collect().iter_slices(SLICE):
                yield piece(frame)
        else:
            for frame in query(pl, work).collect_batches(chunk_size=SLICE, maintain_order=True):
                yield piece(frame)

    return Epochs(lambda: rebatched(pieces(), work.batch))


ENTRY = Entry(
    name="polars",
    module="polars",
    environment="polars",
    requirements=("polars==2.1.0",),
    distributions=("polars",),
    settings=lambda workload: ("collect", "batches") if workload.name == "clicklog" else (),
    run=run,
)
