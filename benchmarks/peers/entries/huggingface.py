"""Hugging Face datasets. Documented: ``with_transform`` under a DataLoader of two workers; what is deterministic and
may be kept is ``map``, into Arrow files. Tuned: whole batches by one call, workers kept from epoch to epoch.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from benchmarks.peers.entries.dataloader import Collate, as_tensors, numpy_of
from benchmarks.peers.entry import Entry, Epochs
from benchmarks.peers.workload import Cached, Chunks, Rows, Work, Workload


class Transform:
    """Columns of several rows to columns of results: rows for the collate function, or a whole batch."""

    def __init__(self, work: Work, whole: bool) -> None:
        self.work, self.whole = work, whole

    def __call__(self, columns: Any) -> Any:
        work = self.work
        indices = columns["i"]
        if isinstance(work, Chunks):
            return {"result": [work.chunk(i) for i in indices]}
        assert isinstance(work, Rows)
        if "kept" in columns and isinstance(work, Cached):
            kept = [
                np.frombuffer(b, np.uint8).reshape(s) for b, s in zip(columns["kept"], columns["shape"], strict=True)
            ]
            rows = [work.suffix(i, array) for i, array in zip(indices, kept, strict=True)]
        else:
            rows = [work.row(i) for i in indices]
        return (
            {"batch": [work.collate(rows)] * len(rows)}
            if self.whole
            else {name: [r[name] for r in rows] for name in rows[0]}
        )


class Prefix:
    def __init__(self, work: Cached) -> None:
        self.work = work

    def __call__(self, row: Any) -> Any:
        kept = self.work.prefix(self.work.read(row["i"]))
        return {"kept": kept.tobytes(), "shape": list(kept.shape)}


def first_batch(columns: Any) -> Any:
    return as_tensors(columns["batch"][0])


def only_result(columns: Any) -> Any:
    return columns["result"]


def run(_workload: Workload, work: Work, setting: str) -> Iterable[Any]:
    datasets = importlib.import_module("datasets")
    data = importlib.import_module("torch.utils.data")
    datasets.disable_progress_bars()
    tuned = setting == "tuned"
    units = len(work) if isinstance(work, Chunks) else work.rows
    dataset = datasets.Dataset.from_dict({"i": list(range(units))})
    if isinstance(work, Cached):
        dataset = dataset.map(
            Prefix(work), num_proc=2, cache_file_name=os.path.join(work.folder, f"huggingface.{os.getpid()}.arrow")
        )
    dataset = dataset.with_transform(Transform(work, whole=tuned and not isinstance(work, Chunks)))
    options = {"num_workers": 2} | ({"persistent_workers": True, "prefetch_factor": 4} if tuned else {})
    if isinstance(work, Chunks):
        loader = data.DataLoader(dataset, batch_size=None, collate_fn=only_result, **options)
        return Epochs(lambda: work.assemble(numpy_of(result) for result in loader))
    assert isinstance(work, Rows)
    if tuned:
        sampler = data.BatchSampler(data.SequentialSampler(dataset), work.batch, drop_last=False)
        loader = data.DataLoader(dataset, sampler=sampler, batch_size=None, collate_fn=first_batch, **options)
    else:
        collate = None if work.regular else Collate(work)
        loader = data.DataLoader(dataset, batch_size=work.batch, collate_fn=collate, **options)
    return Epochs(lambda: loader)


ENTRY = Entry(
    name="HF datasets",
    module="datasets",
    environment="huggingface",
    requirements=("datasets==5.2.0", "torch==2.13.0"),
    distributions=("datasets",),
    settings=lambda _: ("2 workers", "tuned"),
    run=run,
    variables={"HF_HUB_OFFLINE": "1"},
)
