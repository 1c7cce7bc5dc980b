"""A function in pure Python, which threads cannot share: the steps of a number to 1, halved or tripled."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.workload import SEED, Array, Row, Rows, Workload


def steps_to_one(n: int) -> int:
    """The length of a Collatz sequence; about 20 us."""
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


class PythonMap(Rows):
    batch = 256
    compared = ("steps",)

    @cached_property
    def numbers(self) -> Array:
        numbers: Array = np.load(self.path / "numbers.npy")
        return numbers

    def row(self, i: int) -> Row:
        return {"id": np.int64(i), "steps": np.int64(steps_to_one(int(self.numbers[i])))}


def prepare(folder: Path, rows: int, _own: Path | None) -> None:
    """A file for NumPy and one for Parquet readers."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    numbers = np.random.default_rng(SEED).integers(1, 10**12, rows)
    np.save(folder / "numbers.npy", numbers)
    table = pa.table({"id": np.arange(rows), "n": numbers})
    pq.write_table(table, folder / "numbers.parquet", row_group_size=4096)


def pipeline(work: Any, _setting: str) -> Any:
    import cedar

    return (
        cedar.read_parquet(str(work.path / "numbers.parquet"))
        .map(steps_to_one, "n", into="steps", dtype=int)
        .select("id", "steps")
        .batch(work.batch, last="keep")
    )


def alone(work: PythonMap, rows: Sequence[int]) -> int:
    for i in rows:
        steps_to_one(int(work.numbers[i]))
    return len(rows)


WORKLOAD = Workload(
    name="python_map",
    title="a pure-Python map",
    unit="rows",
    rows=(600, 240_000, 600_000),  # epochs of seconds: plans are chosen within the first
    work=PythonMap,
    prepare=prepare,
    pipeline=pipeline,
    limits={"function": alone},
    holds_gil=True,
)
