"""torchdata.nodes. Documented: a parallel mapper on rows, then the batcher, then a mapper that collates. Tuned: the
batcher first, and a whole batch in each call. Threads, and processes for pure Python.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from benchmarks.peers.entries.dataloader import as_tensors
from benchmarks.peers.entry import Entry, Epochs
from benchmarks.peers.workload import Chunks, Rows, Work, Workload


class CollateTensors:
    def __init__(self, work: Rows) -> None:
        self.work = work

    def __call__(self, rows: Any) -> Any:
        return as_tensors(self.work.collate(rows))


class Many:
    def __init__(self, work: Rows) -> None:
        self.work = work

    def __call__(self, indices: Any) -> Any:
        return as_tensors(self.work.many(indices))


def run(workload: Workload, work: Work, setting: str) -> Iterable[Any]:
    nodes = importlib.import_module("torchdata.nodes")
    method = "process" if workload.holds_gil else "thread"

    loader: Iterable[Any]

    def mapper(node: Any, fn: Any, workers: int, method: str = method) -> Any:
        return nodes.ParallelMapper(node, fn, num_workers=workers, method=method)

    if isinstance(work, Chunks):
        node = mapper(nodes.IterableWrapper(range(len(work))), work.chunk, 2)
        if setting == "tuned":
            node = nodes.Prefetcher(node, prefetch_factor=4)
        loader = nodes.Loader(node)
        return Epochs(lambda: work.assemble(loader))
    assert isinstance(work, Rows)
    node = nodes.IterableWrapper(range(work.rows))
    if setting == "tuned":
        node = mapper(nodes.Batcher(node, work.batch, drop_last=False), Many(work), 2)
        loader = nodes.Loader(node)
        return loader
    node = nodes.Batcher(mapper(node, work.row, 2), work.batch, drop_last=False)
    loader = nodes.Loader(nodes.Prefetcher(nodes.Mapper(node, CollateTensors(work)), prefetch_factor=2))
    return loader


ENTRY = Entry(
    name="torchdata.nodes",
    module="torchdata",
    environment="torch",
    requirements=("torch==2.13.0", "torchdata==0.11.0"),
    distributions=("torchdata",),
    settings=lambda _: ("2 workers", "tuned"),
    run=run,
)
