"""What counts how often it is read or called."""

from __future__ import annotations

import threading
from collections import Counter

import pyarrow as pa

from cedar.datasets.base import Split


class Counting:
    """Counts how often each split is read."""

    def __init__(self, start: int = 0, splits: int = 6) -> None:
        self.start = start
        self.count = splits
        self.reads: Counter[int] = Counter()

    def splits(self) -> list[Split]:
        return [Split(i, rows=10, bytes=80, part=i) for i in range(self.count)]

    def read(self, split: Split) -> list[pa.Table]:
        self.reads[split.part] += 1
        first = self.start + 10 * split.part
        return [pa.table({"x": pa.array(range(first, first + 10), pa.int64())})]


class Calls:
    """Counts calls, from any thread. The count is part of its state: one that was called is another to a cache."""

    def __init__(self) -> None:
        self.n = 0
        self._lock = threading.Lock()

    def __call__(self, x: int) -> int:
        with self._lock:
            self.n += 1
        return x + 1
