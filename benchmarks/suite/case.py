"""Case: a pipeline of the suite, its sizes, and its input, written once."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

import cedar

Step: TypeAlias = Callable[[cedar.Pipeline], cedar.Pipeline]
SEED = 7


@dataclass(frozen=True)
class Case:
    """A pipeline: ``make(directory, rows)`` and ``data(directory, rows, seed)`` of a module of this folder.

    Args:
        name: of the module and in tables.
        what: it stands for.
        rows: of a run of a few seconds on two cores, as written.
        short: of a run of about a second.
        tiny: of a run that takes no time, with a few batches.
        pushes: True if a filter or a projection can be pushed, which should give 5x.
        kept: True if ``cache()`` should make the second epoch 5x as fast.
        pause: seconds that the training loop takes for a batch.
        permuted: True if every legal order is tried by brute force: the module then has ``start``, ``STEPS`` and
            ``finish``.
    """

    name: str
    what: str
    rows: int
    short: int
    tiny: int
    pushes: bool = False
    kept: bool = False
    pause: float = 0.0
    permuted: bool = False

    @property
    def module(self) -> Any:
        return importlib.import_module(f"benchmarks.suite.{self.name}")

    def make(self, directory: str, rows: int) -> cedar.Pipeline:
        """The pipeline as a user would write it."""
        made: cedar.Pipeline = self.module.make(directory, rows)
        return made

    def ordered(self, directory: str, order: tuple[str, ...]) -> cedar.Pipeline:
        """The pipeline with its movable steps in another order."""
        module = self.module
        return composed(module.start(directory), {name: module.STEPS[name] for name in order}, module.finish)

    def data(self, folder: Path, rows: int) -> str:
        """Where the input is; written unless this version of it is there."""
        code = "".join(inspect.getsource(importlib.import_module(f"benchmarks.suite.{m}")) for m in self._writers())
        version = hashlib.sha256(code.encode()).hexdigest()[:8]
        place = folder / f"{self.name}-{rows}-{version}"
        if not place.exists():
            for old in folder.glob(f"{self.name}-{rows}-*"):
                shutil.rmtree(old, ignore_errors=True)
            partial = folder / f"{place.name}.{os.getpid()}"
            partial.mkdir(parents=True)
            self.module.data(str(partial), rows, SEED)
            if place.exists():  # another process was first
                shutil.rmtree(partial)
            else:
                partial.rename(place)
        return str(place)

    def _writers(self) -> tuple[str, ...]:
        """Modules whose code decides what is written."""
        return (self.name, *getattr(self.module, "WRITERS", ()))


def composed(start: cedar.Pipeline, steps: Mapping[str, Step], finish: Step) -> cedar.Pipeline:
    """The steps in their order."""
    return finish(reduce(lambda pipeline, step: step(pipeline), steps.values(), start))


def write(directory: str, columns: Mapping[str, Any], group: int, copies: int = 1) -> None:
    """A Parquet file of row groups of ``group`` rows, and hard links to it: reading costs the same, making does not."""
    first = os.path.join(directory, "0000.parquet")
    pq.write_table(pa.table(dict(columns)), first, row_group_size=group)
    for number in range(1, copies):
        os.link(first, os.path.join(directory, f"{number:04d}.parquet"))


def read(directory: str) -> cedar.Pipeline:
    """What ``write`` wrote."""
    return cedar.read_parquet(directory)
