"""Ray Data. Documented: ``map`` on rows, ``iter_batches``. Tuned: ``map_batches`` on whole batches, in few blocks.
What is deterministic and may be kept is materialized in both.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.peers.entry import Entry, Epochs
from benchmarks.peers.workload import Cached, Chunks, Rows, Work, Workload


class RowOf:
    def __init__(self, work: Rows) -> None:
        self.work = work

    def __call__(self, row: Any) -> Any:
        if isinstance(self.work, Cached) and "kept" in row:
            return self.work.suffix(int(row["id"]), row["kept"])
        return self.work.row(int(row["id"]))


class BatchOf:
    def __init__(self, work: Rows) -> None:
        self.work = work

    def __call__(self, rows: Any) -> Any:
        if isinstance(self.work, Cached) and "kept" in rows:
            pairs = zip(rows["id"], rows["kept"], strict=True)
            return self.work.collate([self.work.suffix(int(i), kept) for i, kept in pairs])
        return ragged(self.work.many(rows["id"]))


class Prefix:
    def __init__(self, work: Cached) -> None:
        self.work = work

    def __call__(self, row: Any) -> Any:
        return {"id": row["id"], "kept": self.work.prefix(self.work.read(int(row["id"])))}


class ChunkOf:
    """A chunk's arrays in a block of one row, which may hold any shapes."""

    def __init__(self, work: Chunks) -> None:
        self.work = work

    def __call__(self, row: Any) -> Any:
        result = self.work.chunk(int(row["id"]))
        return {"id": row["id"], **{name: np.asarray(value) for name, value in result.items()}}


def ragged(batch: Any) -> Any:
    """A batch whose columns all have one entry a row."""
    rows = len(batch["id"])
    made: dict[str, Any] = {}
    for name, column in batch.items():
        if name.endswith("/values"):
            continue
        if name.endswith("/offsets"):
            name = name.removesuffix("/offsets")
            values = np.empty(rows, object)
            for i, (first, last) in enumerate(pairwise(column)):
                values[i] = batch[f"{name}/values"][first:last]
            made[name] = values
        else:
            made[name] = column
    return made


def jagged(batch: Any) -> Any:
    """What ``ragged`` did, undone."""
    made: dict[str, Any] = {}
    for name, column in batch.items():
        if column.dtype == object:
            made[f"{name}/values"] = np.concatenate(list(column))
            made[f"{name}/offsets"] = np.concatenate([[0], np.cumsum([len(value) for value in column])])
        else:
            made[name] = column
    return made


def run(_workload: Workload, work: Work, setting: str) -> Iterable[Any]:
    ray = importlib.import_module("ray")
    importlib.import_module("ray.data")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False, namespace="bench")
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    tuned = setting == "tuned"
    if isinstance(work, Chunks):
        chunks = ray.data.range(len(work), override_num_blocks=len(work)).map(ChunkOf(work))
        return Epochs(lambda: work.assemble(chunks.iter_rows()))
    assert isinstance(work, Rows)
    blocks = {"override_num_blocks": max(2, min(16, len(work.batches()) // 2))} if tuned else {}
    ids = ray.data.range(work.rows, **blocks)
    if isinstance(work, Cached):
        ids = ids.map(Prefix(work)).materialize()
    rows = ids.map_batches(BatchOf(work), batch_size=work.batch) if tuned or not work.regular else ids.map(RowOf(work))

    def epoch() -> Iterator[Any]:
        for batch in rows.iter_batches(batch_size=work.batch, batch_format="numpy", prefetch_batches=4 if tuned else 1):
            yield batch if work.regular else jagged(batch)

    return Epochs(epoch)


ENTRY = Entry(
    name="Ray Data",
    module="ray.data",
    environment="ray",
    requirements=("ray[data]==2.60.0",),
    distributions=("ray[data]",),
    settings=lambda _: ("2 CPUs", "tuned"),
    run=run,
    variables={"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"},
)
