"""Grain. Documented: map, batch, and two processes of ``mp_prefetch``, or its read threads. Tuned: batches of indices,
and a whole batch for a thread; for pure Python for a process.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from benchmarks.peers.entry import Entry, Epochs
from benchmarks.peers.workload import Chunks, Rows, Work, Workload


class BatchOf:
    """Batch number b, for a dataset of batch numbers."""

    def __init__(self, work: Rows) -> None:
        self.work = work

    def __call__(self, b: int) -> Any:
        first = int(b) * self.work.batch
        return self.work.many(range(first, min(first + self.work.batch, self.work.rows)))


class RowOf:
    def __init__(self, work: Rows) -> None:
        self.work = work

    def __call__(self, i: int) -> Any:
        return self.work.row(int(i))


class ChunkOf:
    def __init__(self, work: Chunks) -> None:
        self.work = work

    def __call__(self, i: int) -> Any:
        return self.work.chunk(int(i))


class Endless:
    """Epochs of ``length`` elements of one endless iterator, as ``repeat()`` is meant: workers live on."""

    def __init__(self, dataset: Any, length: int) -> None:
        self.dataset, self.length = dataset, length
        self.running: Any = None

    def __iter__(self) -> Iterator[Any]:
        if self.running is None:
            self.running = iter(self.dataset)
        return islice(self.running, self.length)


def run(workload: Workload, work: Work, setting: str) -> Iterable[Any]:
    grain = importlib.import_module("grain")
    options = importlib.import_module("grain.multiprocessing")

    def started(dataset: Any) -> Endless:
        processes = setting == "2 processes" or workload.holds_gil
        threads = 0 if processes and setting == "tuned" else 2
        reading = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads or 1)
        made = dataset.repeat().to_iter_dataset(reading)
        made = made.mp_prefetch(options.MultiprocessingOptions(num_workers=2)) if processes else made
        return Endless(made, len(dataset))

    if isinstance(work, Chunks):
        chunks = started(grain.MapDataset.range(len(work)).map(ChunkOf(work)))
        return Epochs(lambda: work.assemble(chunks))
    assert isinstance(work, Rows)
    if setting == "tuned":
        return started(grain.MapDataset.range(len(work.batches())).map(BatchOf(work)))
    rows = grain.MapDataset.range(work.rows).map(RowOf(work))
    return started(rows.batch(work.batch, batch_fn=work.collate))


ENTRY = Entry(
    name="Grain",
    module="grain",
    environment="grain",
    requirements=("grain==0.2.18",),
    distributions=("grain",),
    settings=lambda _: ("2 processes", "tuned"),
    run=run,
)
