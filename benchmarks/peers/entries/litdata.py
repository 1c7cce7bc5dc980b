"""LitData on its own files, which hold what the workload's files do: for what comes from files, and for text.

Documented: ``transform`` on each sample, StreamingDataLoader with two workers; tuned: a whole batch in each call,
workers kept. Text is packed in the order of its lines, and LitData deals ranges of samples to workers: there it has
none.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.peers.entries.dataloader import as_tensors
from benchmarks.peers.entry import Entry, Epochs
from benchmarks.peers.workload import Files, Work, Workload
from benchmarks.peers.workloads.text import Text


class Sample:
    """Sample ``i`` as it is stored: what a file holds, or the lines of a chunk."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def __call__(self, i: int) -> dict[str, Any]:
        work = self.work
        assert isinstance(work, Files | Text)
        return {"id": i, "bin": work.read(i) if isinstance(work, Files) else work.content(i)}


class Finish:
    """A sample to a row, or to the tokens of its lines."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def __call__(self, sample: Any) -> Any:
        work = self.work
        if isinstance(work, Text):
            return work.encoded(bytes(sample["bin"]))
        assert isinstance(work, Files)
        return work.finish(int(sample["id"]), bytes(sample["bin"]))


class Collate:
    """Rows to a batch; ``whole``: of samples that nothing was done to."""

    def __init__(self, work: Files, *, whole: bool) -> None:
        self.work, self.whole = work, whole

    def __call__(self, rows: Any) -> Any:
        finish = Finish(self.work)
        return as_tensors(self.work.collate([finish(row) for row in rows] if self.whole else rows))


def count(work: Work) -> int:
    """How many samples there are."""
    return len(work) if isinstance(work, Text) else work.rows


def place(work: Work, name: str) -> Path:
    return work.path / name


def convert(work: Work) -> None:
    """Chunks of 64 MB."""
    litdata: Any = importlib.import_module("litdata")
    if not place(work, "litdata").exists():
        partial = place(work, "litdata.part")
        shutil.rmtree(partial, ignore_errors=True)
        litdata.optimize(
            fn=Sample(work), inputs=list(range(count(work))), output_dir=str(partial), chunk_bytes="64MB", num_workers=1
        )
        partial.rename(place(work, "litdata"))


def run(_workload: Workload, work: Work, setting: str) -> Iterable[Any]:
    litdata: Any = importlib.import_module("litdata")
    where, finish = str(place(work, "litdata")), Finish(work)
    if isinstance(work, Text):
        lines = litdata.StreamingDataset(where, transform=finish, shuffle=False)
        return Epochs(lambda: work.assemble(lines))
    assert isinstance(work, Files)
    tuned = setting == "own files, tuned"
    dataset = litdata.StreamingDataset(where, shuffle=False, **({} if tuned else {"transform": finish}))
    ahead = {"persistent_workers": True, "prefetch_factor": 4} if tuned else {}
    collate = Collate(work, whole=tuned)
    loader = litdata.StreamingDataLoader(dataset, batch_size=work.batch, num_workers=2, collate_fn=collate, **ahead)
    return Epochs(lambda: loader)


def settings(workload: Workload) -> tuple[str, ...]:
    if workload.work is Text:
        return ("own files, no worker",)
    return ("own files, 2 workers", "own files, tuned") if issubclass(workload.work, Files) else ()


ENTRY = Entry(
    name="LitData",
    module="litdata",
    environment="stored",
    requirements=("torch==2.13.0", "pylance==14.0.2", "litdata==0.2.76"),
    distributions=("litdata",),
    settings=settings,
    run=run,
    convert=convert,
)
