"""SPDL. Documented: a stage of two tasks on rows, aggregate, a stage that collates. Tuned: a whole batch in a task.
Threads, and a pool of processes for pure Python.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.peers.entry import Entry, Epochs
from benchmarks.peers.workload import Chunks, Rows, Work, Workload

TIMEOUT = 120  # seconds; a lost task ends the run instead of hanging it


def run(workload: Workload, work: Work, setting: str) -> Iterable[Any]:
    builder = importlib.import_module("spdl.pipeline").PipelineBuilder
    pool: dict[str, Any] = {"executor": _pool()} if workload.holds_gil else {}

    def pipeline() -> Any:
        if isinstance(work, Chunks):
            ahead = 4 if setting == "tuned" else 2
            made = builder().add_source(range(len(work))).pipe(work.chunk, concurrency=2, output_order="input", **pool)
            return made.add_sink(ahead).build(num_threads=2)
        assert isinstance(work, Rows)
        if setting == "tuned":
            made = builder().add_source(work.batches()).pipe(work.many, concurrency=2, output_order="input", **pool)
            return made.add_sink(4).build(num_threads=2)
        made = builder().add_source(range(work.rows)).pipe(work.row, concurrency=2, **pool).aggregate(work.batch)
        return made.pipe(work.collate).add_sink(2).build(num_threads=2)

    def results() -> Iterator[Any]:
        running = pipeline()
        with running.auto_stop():
            yield from running.get_iterator(timeout=TIMEOUT)

    return Epochs(lambda: work.assemble(results()) if isinstance(work, Chunks) else results())


def _pool() -> Any:
    """Two processes, spawned, kept from epoch to epoch."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    return ProcessPoolExecutor(2, mp_context=get_context("spawn"))


ENTRY = Entry(
    name="SPDL",
    module="spdl.pipeline",
    environment="spdl",
    requirements=("spdl-core==0.8.0",),
    distributions=("spdl-core",),
    settings=lambda _: ("2 tasks", "tuned"),
    run=run,
)
