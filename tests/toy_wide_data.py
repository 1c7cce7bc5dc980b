"""Tables of many kinds of columns, sources of them, and functions on them, for random pipelines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cedar.datasets.base import Split

WORDS = ["", "a", "bee", "sea", "dolphin", "Öl", "12", "-7", "3.5", "nan"]
KINDS = {"id": "int", "x": "int", "y": "null", "z": "int", "f": "float", "h": "float", "s": "str", "l": "list"}


def table(start: int, size: int) -> pa.Table:
    """Rows of every kind of column; ``y``, ``f`` and ``s`` have nulls, ``f`` has NaN, infinity and both zeros."""
    ids = range(start, start + size)
    floats = [0.0, -0.0, math.nan, None, 1.5, -2.25, math.inf, 7.0, 1e-3]
    columns = {
        "id": pa.array(ids, pa.int64()),
        "x": pa.array([i * 7 % 23 for i in ids], pa.int64()),
        "y": pa.array([None if i % 6 == 1 else i % 11 - 3 for i in ids], pa.int64()),
        "z": pa.array([i // 5 % 4 for i in ids], pa.int64()),
        "f": pa.array([floats[i * 5 % 9] for i in ids], pa.float64()),
        "h": pa.array([float(i % 13) / 4 for i in ids], pa.float64()),
        "s": pa.array([None if i % 7 == 3 else WORDS[i * 3 % 10] for i in ids], pa.large_string()),
        "l": pa.array([list(range(i % 5)) for i in ids], pa.large_list(pa.int64())),
        "views": pa.array([["a" * (i % 20)] * (i % 3) for i in ids], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
        "pairs": pa.array([[i % 5, i % 3] for i in ids], pa.list_(pa.int16(), 2)),
    }
    return pa.table(columns)


@cache
def files(first: int, sizes: tuple[int, ...], group: int) -> str:
    """Parquet files of so many rows each, in row groups of ``group`` rows."""
    folder = Path(mkdtemp(prefix="plans"))
    for number, size in enumerate(sizes):
        start = first * 100_000 + number * 1000
        pq.write_table(table(start, size), folder / f"part-{number}.parquet", row_group_size=group)
    return str(folder / "*.parquet")


@cache
def lines() -> str:
    """A text file."""
    path = Path(mkdtemp(prefix="plans")) / "words.txt"
    path.write_text("".join(f"{WORDS[i * 3 % 10]} {i}\n" for i in range(40)), encoding="utf-8")
    return str(path)


class Splits:
    """A source of uneven splits; ``streaming`` ones can only be read from their beginning."""

    def __init__(self, start: int, sizes: Sequence[int], known: bool, streaming: bool) -> None:
        self._start, self._sizes, self._known, self._streaming = start, list(sizes), known, streaming

    def splits(self) -> list[Split]:
        return [
            Split(file=n, rows=size if self._known else None, bytes=size * 64, part=n, streaming=self._streaming)
            for n, size in enumerate(self._sizes)
        ]

    def read(self, split: Any) -> Iterator[pa.Table]:
        whole = table(self._start + 1000 * split.part, self._sizes[split.part])
        yield whole.slice(0, len(whole) // 3)
        yield whole.slice(len(whole) // 3)


# ---- functions of the user -------------------------------------------------------------------------------------------


def plus(x: Any) -> int:
    return (x or 0) + 1


def both(x: Any, y: Any) -> int:
    return (x or 0) * 3 + (y or 0)


def half(x: Any) -> float:
    return math.nan if x is None else float(x) / 2


def long(s: Any) -> int:
    return len(s or "")


def shout(s: Any) -> str:
    return (s or "none") + "!"


def some(x: Any) -> list[int]:
    return list(range(int(x or 0) % 3))


def dice(x: Any, rng: np.random.Generator) -> int:
    return int(x or 0) + int(rng.integers(0, 5))


def seldom(x: Any) -> int:
    """Fails on some rows."""
    if (x or 0) % 11 == 4:
        raise ValueError(f"no {x}")
    return int(x or 0)


def whole_row(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"id": row["id"] + 1}


def row_counts(row: dict[str, Any]) -> bool:
    return (len(row) + int(row["id"])) % 4 != 0
