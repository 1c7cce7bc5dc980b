"""Small random reads: records of a kilobyte in one large file, in an order that is all over it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.workload import SEED, Array, Row, Rows, Workload

SIZE = 1024


class RandomReads(Rows):
    """Record i of the epoch lies somewhere: ``order`` says where, and is the same for all peers."""

    batch = 128
    compared = ("x",)

    @cached_property
    def file(self) -> int:
        return os.open(self.path / "records.bin", os.O_RDONLY)

    @cached_property
    def order(self) -> Array:
        return np.random.default_rng(SEED).permutation(self.rows)

    def record(self, j: int) -> Row:
        values = np.frombuffer(os.pread(self.file, SIZE, j * SIZE), np.uint8)
        return {"id": np.int64(j), "x": values.astype(np.float32) * np.float32(1 / 255)}

    def row(self, i: int) -> Row:
        return self.record(int(self.order[i]))

    def reference(self, row: int) -> Row:
        with (self.path / "records.bin").open("rb") as file:
            file.seek(row * SIZE)
            return {"x": np.frombuffer(file.read(SIZE), np.uint8).astype(np.float32) * np.float32(1 / 255)}


class Records:
    """The same as a map-style dataset, for ours: where each record is, is up to the pipeline's shuffle."""

    def __init__(self, work: RandomReads) -> None:
        self.work = work

    def __len__(self) -> int:
        return self.work.rows

    def __getitem__(self, j: int) -> Row:
        return self.work.record(j)

    def __getitems__(self, indices: Sequence[int]) -> list[Row]:
        return [self.work.record(j) for j in indices]


def prepare(folder: Path, rows: int, _own: Path | None) -> None:
    rng = np.random.default_rng(SEED)
    with (folder / "records.bin").open("wb") as file:
        for start in range(0, rows, 10_000):
            file.write(rng.integers(0, 256, (min(10_000, rows - start), SIZE), dtype=np.uint8).tobytes())


def pipeline(work: Any, _setting: str) -> Any:
    import cedar

    return cedar.from_items(Records(work)).shuffle().batch(work.batch, last="keep")


def alone(work: RandomReads, rows: Sequence[int]) -> int:
    for i in rows:
        os.pread(work.file, SIZE, int(work.order[i]) * SIZE)
    return len(rows)


WORKLOAD = Workload(
    name="random_reads",
    title="small random reads",
    unit="records",
    rows=(900, 100_000, 600_000),
    work=RandomReads,
    prepare=prepare,
    pipeline=pipeline,
    limits={"read": alone},
)
