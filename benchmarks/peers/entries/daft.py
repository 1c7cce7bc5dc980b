"""Daft, for tables alone: columns and rows are chosen by its frame, the rest is NumPy on its Arrow batches."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.peers.entry import Entry, Epochs
from benchmarks.peers.rebatch import Piece, rebatched
from benchmarks.peers.workload import Work, Workload
from benchmarks.peers.workloads.clicklog import LEAST, READ, work_on


def run(_workload: Workload, work: Work, _setting: str) -> Iterable[Any]:
    daft = importlib.import_module("daft")
    pa = importlib.import_module("pyarrow")
    col = daft.col

    def pieces() -> Iterator[Piece]:
        frame = daft.read_parquet(f"{work.folder}/log/*.parquet").select(*READ)
        frame = frame.where(col("label").not_null() & (col("d0") > LEAST))
        for batch in frame.to_arrow_iter():
            table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
            yield work_on(table)

    return Epochs(lambda: rebatched(pieces(), work.batch))


ENTRY = Entry(
    name="Daft",
    module="daft",
    environment="daft",
    requirements=("pyarrow==25.0.1", "daft==0.7.26"),
    distributions=("daft",),
    settings=lambda workload: ("iterate",) if workload.name == "clicklog" else (),
    run=run,
    variables={"DO_NOT_TRACK": "1", "DAFT_ANALYTICS_ENABLED": "0", "DAFT_PROGRESS_BAR": "0"},
)
