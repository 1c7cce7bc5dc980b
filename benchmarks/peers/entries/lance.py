"""LanceDB's loader, ``lance.torch.data.LanceDataset``, for tables alone, on its own files: it reads the columns and
filters, ``to_tensor_fn`` is the rest. Documented: batches of the wanted size; tuned: 32,768 rows at a time, cut here.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers.entry import Entry, Epochs
from benchmarks.peers.rebatch import rebatched
from benchmarks.peers.workload import Work, Workload
from benchmarks.peers.workloads.clicklog import GROUP, LEAST, READ, ClickLog, columns_of


def place(work: Work) -> Path:
    return work.path / "log.lance"


def convert(work: Work) -> None:
    """The log as a Lance data set, as Lance writes it unless set otherwise."""
    assert isinstance(work, ClickLog)
    lance: Any = importlib.import_module("lance")
    dataset: Any = importlib.import_module("pyarrow.dataset")
    if not place(work).exists():
        partial = place(work).with_suffix(".part")
        shutil.rmtree(partial, ignore_errors=True)
        files = [path for path, _ in work.files]
        lance.write_dataset(dataset.dataset(files).scanner(use_threads=False).to_reader(), str(partial))
        partial.rename(place(work))


def worked(batch: Any, **_: Any) -> Any:
    pa: Any = importlib.import_module("pyarrow")
    return columns_of(pa.Table.from_batches([batch]).combine_chunks())


def run(_workload: Workload, work: Work, setting: str) -> Iterable[Any]:
    data: Any = importlib.import_module("lance.torch.data")
    size = GROUP if setting == "own files, tuned" else work.batch
    loader = data.LanceDataset(
        str(place(work)), batch_size=size, columns=list(READ), filter=f"label IS NOT NULL AND d0 > {LEAST}",
        to_tensor_fn=worked,
    )  # fmt: skip

    def batches() -> Iterator[Any]:
        yield from loader if size == work.batch else rebatched(loader, work.batch)

    return Epochs(batches)


ENTRY = Entry(
    name="Lance",
    module="lance",
    environment="stored",
    requirements=("torch==2.13.0", "pylance==14.0.2", "litdata==0.2.76"),
    distributions=("pylance",),
    settings=lambda workload: ("own files, batches", "own files, tuned") if workload.name == "clicklog" else (),
    run=run,
    convert=convert,
)
