"""torch DataLoader. Documented: two workers, a row at a time, the default collate function, chunks by a map-style
dataset without automatic batching. Tuned: workers kept from epoch to epoch, four batches ahead; for chunks no worker,
since sending them costs more than making them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.peers.entry import Entry, Epochs
from benchmarks.peers.workload import Chunks, Rows, Work, Workload


class RowDataset:
    """Map-style, as torch wants it; ``__getitems__`` where a whole batch is fetched at once."""

    def __init__(self, work: Rows) -> None:
        self.work = work

    def __len__(self) -> int:
        return self.work.rows

    def __getitem__(self, i: int) -> Any:
        return self.work.row(i)


class BatchDataset(RowDataset):
    """The whole batch in one call, collated where the rows are created."""

    def __getitems__(self, indices: Sequence[int]) -> Any:
        return self.work.many(indices)


class ChunkDataset:
    def __init__(self, work: Chunks) -> None:
        self.work = work

    def __len__(self) -> int:
        return len(self.work)

    def __getitem__(self, i: int) -> Any:
        return self.work.chunk(i)


def as_tensors(columns: Any) -> Any:
    """A batch of ndarrays as one of tensors that share their memory."""
    torch = importlib.import_module("torch")
    return {name: torch.from_numpy(column) for name, column in columns.items()}


class Collate:
    """For rows that differ in shape."""

    def __init__(self, work: Rows) -> None:
        self.work = work

    def __call__(self, rows: Any) -> Any:
        return as_tensors(self.work.collate(rows))


def loader_of(make: Callable[..., Any]) -> Callable[[Workload, Work, str], Iterable[Any]]:
    """The entry's ``run``, for DataLoader and what stands in its place."""

    def run(_workload: Workload, work: Work, setting: str) -> Iterable[Any]:
        tuned = setting == "tuned"
        ahead = {"persistent_workers": True, "prefetch_factor": 4} if tuned else {}
        if isinstance(work, Chunks):
            workers = {"num_workers": 0} if tuned else {"num_workers": 2}
            loader = make(ChunkDataset(work), batch_size=None, **workers)
            return Epochs(lambda: work.assemble(numpy_of(result) for result in loader))
        assert isinstance(work, Rows)
        dataset, collate = (
            (BatchDataset(work), as_tensors) if tuned else (RowDataset(work), None if work.regular else Collate(work))
        )
        loader = make(dataset, batch_size=work.batch, num_workers=2, collate_fn=collate, **ahead)
        return Epochs(lambda: loader)

    return run


def numpy_of(result: Any) -> Any:
    """Tensors of a chunk as the ndarrays that they were."""
    if isinstance(result, dict):
        return {name: numpy_of(value) for name, value in result.items()}
    return result.numpy() if hasattr(result, "numpy") else result


def _make(*arguments: Any, **options: Any) -> Any:
    return importlib.import_module("torch.utils.data").DataLoader(*arguments, **options)


ENTRY = Entry(
    name="DataLoader",
    module="torch",
    environment="torch",
    requirements=("torch==2.13.0", "torchdata==0.11.0"),
    distributions=("torch",),
    settings=lambda _: ("2 workers", "tuned"),
    run=loader_of(_make),
)
