"""webdataset: shards of a hundred files, WebLoader with two workers. Documented: ``map``, ``batched``; tuned: the map
and the batching by one call on many samples, workers kept. For what comes from files; there is no random access.
"""

from __future__ import annotations

import importlib
import io
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.peers.entries.dataloader import as_tensors
from benchmarks.peers.entry import Entry, Epochs
from benchmarks.peers.workload import Files, Work, Workload

SHARD = 100


class Finish:
    """A sample of a shard to a row."""

    def __init__(self, work: Files) -> None:
        self.work = work

    def __call__(self, sample: Any) -> Any:
        return self.work.finish(int(sample["__key__"]), sample["bin"])


class CollateTensors:
    def __init__(self, work: Files) -> None:
        self.work = work

    def __call__(self, rows: Any) -> Any:
        # the library adds the sample's key to what a map gives
        own = [{name: value for name, value in row.items() if not name.startswith("__")} for row in rows]
        return as_tensors(self.work.collate(own))


class Whole(CollateTensors):
    """A list of samples to a batch."""

    def __call__(self, samples: Any) -> Any:
        return super().__call__([self.work.finish(int(s["__key__"]), s["bin"]) for s in samples])


def run(_workload: Workload, work: Work, setting: str) -> Iterable[Any]:
    wds = importlib.import_module("webdataset")
    assert isinstance(work, Files)
    dataset = wds.WebDataset(shards(work), shardshuffle=False)
    if setting == "tuned":
        dataset = dataset.batched(work.batch, collation_fn=Whole(work), partial=True)
        loader = wds.WebLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True, prefetch_factor=4)
    else:
        dataset = dataset.map(Finish(work)).batched(work.batch, collation_fn=CollateTensors(work), partial=True)
        loader = wds.WebLoader(dataset, batch_size=None, num_workers=2)
    return Epochs(lambda: loader)


def shards(work: Files) -> list[str]:
    """The files of the workload in tar files, written once."""
    size = max(1, min(SHARD, work.rows // 4))  # two for each worker at least
    folder = Path(work.folder) / "shards"
    paths = [folder / f"{number:05d}.tar" for number in range(-(-work.rows // size))]
    folder.mkdir(exist_ok=True)
    for number, path in enumerate(paths):
        if not path.exists():
            partial = path.with_suffix(".part")
            with tarfile.open(partial, "w") as tar:
                for i in range(number * size, min((number + 1) * size, work.rows)):
                    content = work.read(i)
                    member = tarfile.TarInfo(f"{i:09d}.bin")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
            partial.rename(path)
    return [str(path) for path in paths]


def convert(work: Work) -> None:
    assert isinstance(work, Files)
    shards(work)


def settings(workload: Workload) -> tuple[str, ...]:
    return ("2 workers", "tuned") if issubclass(workload.work, Files) else ()


ENTRY = Entry(
    name="webdataset",
    module="webdataset",
    environment="webdataset",
    requirements=("webdataset==1.0.2", "torch==2.13.0"),
    distributions=("webdataset",),
    settings=settings,
    run=run,
    convert=convert,
)
