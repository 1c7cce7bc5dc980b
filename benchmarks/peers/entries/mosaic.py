"""Mosaic Streaming on its own files (MDS), which hold what the workload's do: for what comes from files, and text.

Documented: a subclass whose ``__getitem__`` transforms, torch's DataLoader with two workers; tuned: a whole batch in
each call, workers kept. It refuses newer versions of NumPy and tokenizers than the others have.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Iterable
from typing import Any

from benchmarks.peers.entries.litdata import Collate, Finish, Sample, count, place
from benchmarks.peers.entry import Entry, Epochs
from benchmarks.peers.workload import Files, Work, Workload
from benchmarks.peers.workloads.text import Text


def convert(work: Work) -> None:
    """Shards of 64 MB, as the library cuts them unless set otherwise."""
    streaming: Any = importlib.import_module("streaming")
    if not place(work, "mds").exists():
        partial, sample = place(work, "mds.part"), Sample(work)
        shutil.rmtree(partial, ignore_errors=True)
        with streaming.MDSWriter(out=str(partial), columns={"id": "int", "bin": "bytes"}) as writer:
            for i in range(count(work)):
                writer.write(sample(i))
        partial.rename(place(work, "mds"))


def run(_workload: Workload, work: Work, setting: str) -> Iterable[Any]:
    streaming: Any = importlib.import_module("streaming")
    data: Any = importlib.import_module("torch.utils.data")
    streaming.base.util.clean_stale_shared_memory()  # of a run that was ended
    finish, tuned = Finish(work), setting == "own files, tuned"
    whole = tuned and isinstance(work, Files)

    class Dataset(streaming.StreamingDataset):  # type: ignore[misc]  # of a library without types
        def __getitem__(self, at: Any) -> Any:
            sample = super().__getitem__(at)
            return sample if whole else finish(sample)

    size = work.batch if isinstance(work, Files) else 1
    dataset = Dataset(local=str(place(work, "mds")), batch_size=size, shuffle=False)
    ahead = {"persistent_workers": True, "prefetch_factor": 4} if tuned else {}
    if isinstance(work, Text):
        chunks = data.DataLoader(dataset, batch_size=1, num_workers=2, collate_fn=_only, **ahead)
        return Epochs(lambda: work.assemble(chunks))
    assert isinstance(work, Files)
    collate = Collate(work, whole=whole)
    loader = data.DataLoader(dataset, batch_size=size, num_workers=2, collate_fn=collate, **ahead)
    return Epochs(lambda: loader)


def _only(rows: Any) -> Any:
    return rows[0]


def settings(workload: Workload) -> tuple[str, ...]:
    fits = workload.work is Text or issubclass(workload.work, Files)
    return ("own files, 2 workers", "own files, tuned") if fits else ()


ENTRY = Entry(
    name="Mosaic Streaming",
    module="streaming",
    environment="mosaic",
    requirements=(
        "numpy==2.1.3",
        "tokenizers==0.22.2",
        "torch==2.15.0",
        "torchvision==0.29.2",
        "mosaicml-streaming==0.13.0",
    ),
    distributions=("mosaicml-streaming",),
    settings=settings,
    run=run,
    convert=convert,
)
