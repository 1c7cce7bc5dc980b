"""Workload: what is to be done, once for all: the input, the functions that work on it, and how outputs are compared.

A module of ``benchmarks/peers/workloads`` defines ``WORKLOAD`` and nothing else has to know of it. The functions are
those of a competent user, and the same for every peer that takes Python functions. There are two shapes:

- ``Rows``: row i has nothing to do with row i + 1 (an image, a clip);
- ``Chunks``: a chunk of rows is read and worked on at once, and batches are cut from the results (a row group, lines).
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Row: TypeAlias = dict[str, Any]
Batch: TypeAlias = Mapping[str, Any]
SEED = 7


class Work(ABC):
    """A workload on its input. Picklable: it holds the folder and the number of rows, and opens files where it runs."""

    batch: ClassVar[int]
    compared: ClassVar[tuple[str, ...]] = ()  # columns of a batch that are compared with the reference

    def __init__(self, folder: str, rows: int) -> None:
        self.folder, self.rows = folder, rows

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.folder, self.rows)

    @property
    def path(self) -> Path:
        return Path(self.folder)

    def ids(self, batch: Batch, position: int) -> Array:
        """What identifies the rows of a batch; ``position`` is the number of rows before it."""
        return np.asarray(batch["id"]).astype(np.int64)

    def expected(self) -> Array:
        """The identities of the rows of an epoch."""
        return np.arange(self.rows)

    @abstractmethod
    def reference(self, row: int) -> Row:
        """Row ``row`` of the output, one operator after the other."""

    def sample(self, batch: Batch, at: int) -> Row:
        """Row ``at`` of a batch, as far as it is compared; copies, and small."""
        return {name: self.thin(name, np.array(taken(batch, name, at))) for name in self.compared}

    def sample_of(self, row: Row) -> Row:
        """What ``sample`` keeps, of a row of the reference."""
        return {name: self.thin(name, np.asarray(row[name])) for name in self.compared}

    def thin(self, name: str, value: Array) -> Array:
        """A part of a large value that says enough of it."""
        return value


class Rows(Work):
    """Rows that can be had one by one."""

    regular: ClassVar[bool] = True  # every column has one shape: default collate functions take it

    @abstractmethod
    def row(self, i: int) -> Row:
        """Row ``i`` with all that is to be done to it, with its ``id``."""

    def collate(self, rows: Sequence[Row]) -> dict[str, Array]:
        """Rows to a batch."""
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    def many(self, indices: Iterable[int]) -> dict[str, Array]:
        """A batch in one call."""
        return self.collate([self.row(int(i)) for i in indices])

    def batches(self) -> list[range]:
        """The indices of each batch of an epoch."""
        return [range(start, min(start + self.batch, self.rows)) for start in range(0, self.rows, self.batch)]

    def reference(self, row: int) -> Row:
        return self.row(row)


class Files(Rows):
    """Rows that come from files, one each: ``read`` and then ``finish``."""

    @abstractmethod
    def read(self, i: int) -> bytes:
        """What the file holds."""

    @abstractmethod
    def finish(self, i: int, content: bytes) -> Row:
        """The row of a file's content."""

    def row(self, i: int) -> Row:
        return self.finish(i, self.read(i))


class Cached(Files):
    """Rows with a deterministic, expensive part that may be kept from epoch to epoch."""

    @abstractmethod
    def prefix(self, content: bytes) -> Array:
        """What may be kept."""

    @abstractmethod
    def suffix(self, i: int, kept: Array) -> Row:
        """What is new in every epoch."""

    def finish(self, i: int, content: bytes) -> Row:
        return self.suffix(i, self.prefix(content))


class Chunks(Work):
    """Chunks of rows that are worked on at once."""

    @abstractmethod
    def __len__(self) -> int:
        """How many chunks there are."""

    @abstractmethod
    def chunk(self, i: int) -> Any:
        """Chunk ``i`` with all that can be done before batches are cut."""

    @abstractmethod
    def assemble(self, results: Iterable[Any]) -> Iterator[Batch]:
        """Batches, from the results of all chunks in their order."""


@dataclass(frozen=True)
class Workload:
    """A kind of work with its sizes.

    Args:
        name: of the module.
        title: for tables.
        unit: what is counted.
        rows: of an epoch: of the short tests, of the quick form, of the full one.
        work: the class that does it, on ``(folder, rows)``.
        prepare: writes the input for so many rows into a folder; third argument: a folder of the user's own files.
        pipeline: our own entry: a function of ``(work, config)`` that gives a ``cedar.Pipeline``.
        limits: parts of the work alone, each a function of the work and the indices of rows or chunks: gives how many
            rows it has worked on.
        random: True if rows are drawn upon: the draws of ours are our own, and are compared with those of the plan
            as written, run inline, and by their means with the reference.
        tolerance: largest mean absolute difference of a compared row where operators are not the same.
        holds_gil: its functions hold the GIL: peers that choose by hand take processes.
    """

    name: str
    title: str
    unit: str
    rows: tuple[int, int, int]
    work: type[Work]
    prepare: Callable[[Path, int, Path | None], None]
    pipeline: Callable[[Any, str], Any]
    limits: Mapping[str, Callable[[Any, Sequence[int]], int]] = field(default_factory=dict)
    random: bool = False
    tolerance: float = 0.0
    holds_gil: bool = False


def workloads() -> dict[str, Workload]:
    """All of them, by name."""
    return {name: module.WORKLOAD for name, module in modules("workloads").items()}


def workload(name: str) -> Workload:
    found: Workload = importlib.import_module(f"benchmarks.peers.workloads.{name}").WORKLOAD
    return found


def modules(folder: str) -> dict[str, Any]:
    """The modules of a folder next to this file, by name."""
    place = str(Path(__file__).with_name(folder))
    names = sorted(found.name for found in pkgutil.iter_modules([place]) if not found.name.startswith("_"))
    return {name: importlib.import_module(f"benchmarks.peers.{folder}.{name}") for name in names}


@cache
def library(name: str) -> Any:
    """A module, imported when it is first needed: most environments have but a few of them."""
    return importlib.import_module(name)


def plain(value: Any) -> Any:
    """A tensor of any library as an ndarray."""
    if hasattr(value, "numpy") and not isinstance(value, np.ndarray):
        value = value.numpy()
    return np.asarray(value)


def taken(batch: Batch, name: str, at: int) -> Any:
    """Row ``at`` of a column; a jagged one is an object with values and offsets, or two columns."""
    if f"{name}/values" in batch:
        values, offsets = plain(batch[f"{name}/values"]), plain(batch[f"{name}/offsets"])
        return values[offsets[at] : offsets[at + 1]]
    column = batch[name]
    if hasattr(column, "offsets") and not callable(column.offsets):
        values, offsets = plain(column.values), plain(column.offsets)
        return values[offsets[at] : offsets[at + 1]]
    return plain(column[at])


def split_mix(word: int, k: int) -> Array:
    """``k`` floats in [0, 1) that follow from ``word``: the draws of a row, cheap, the same in every process."""
    with np.errstate(over="ignore"):
        z = (np.uint64(word) + np.uint64(SEED)) * np.uint64(0xD1342543DE82EF95) + np.arange(
            1, k + 1, dtype=np.uint64
        ) * (np.uint64(0x9E3779B97F4A7C15))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(11)) * 2.0**-53
