"""The data set of the scale simulator: numbered rows in splits whose sizes differ, made when they are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

import cedar
from cedar.datasets.base import Split
from cedar.datasets.split_table import SplitTable

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Size:
    """How large the simulated job is."""

    ranks: int = 4096
    splits: int = 1_000_000
    rows: int = 10_000_000_000
    batch: int = 1024
    row_bytes: int = 1024


class Numbered:
    """Rows that have numbers; splits of lognormal sizes, sigma 0.25.

    Args:
        counted: it says how many rows a split has; else only its bytes.
    """

    def __init__(self, size: Size, counted: bool = True) -> None:
        self._size, self._counted = size, counted
        self.row_bytes = size.row_bytes

    @cached_property
    def rows(self) -> Ints:
        """Of each split: at least one, and all of them in sum."""
        weights = np.random.default_rng(0).lognormal(0, 0.25, self._size.splits)
        ends = np.cumsum(weights) / weights.sum() * (self._size.rows - self._size.splits)
        rows: Ints = np.diff(np.rint(ends).astype(np.int64), prepend=0) + 1
        return rows

    @cached_property
    def firsts(self) -> Ints:
        """The number of each split's first row."""
        return np.cumsum(self.rows) - self.rows

    def splits(self) -> SplitTable:
        return SplitTable(
            file=np.arange(len(self.rows)),
            rows=self.rows if self._counted else None,
            bytes=self.rows * self.row_bytes,
        )

    def schema(self) -> dict[str, Any]:
        return {"row": np.dtype(np.int64)}

    def digest(self) -> str:
        return f"{self._size} {self._counted}"

    def read(self, split: Split) -> Iterator[dict[str, Any]]:
        yield {"row": np.arange(self.rows[split.file], dtype=np.int64) + self.firsts[split.file]}


def counted(size: Size) -> cedar.Pipeline:
    """Of known counts: ranks take runs of batches."""
    return cedar.from_source(Numbered(size)).shuffle(seed=1).batch(size.batch, last="drop")


def uncounted(size: Size) -> cedar.Pipeline:
    """Of unknown counts: ranks have lanes; each ends with its own, so that one of them can be run alone."""
    return cedar.from_source(Numbered(size, counted=False)).shuffle(seed=1).batch(size.batch, last="keep")
