"""A trap: a cheap map makes 512 floats of an id before a shuffle and an expensive map that makes a number of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import cedar
from benchmarks.suite.case import read, write

WIDTH = 512
Vectors = dict[str, npt.NDArray[Any]]


def data(directory: str, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    write(directory, {"id": rng.integers(0, 10_000, rows), "x": rng.random(rows)}, 8192)


def embed(columns: Vectors) -> Vectors:
    """Made from the id alone."""
    phases = columns["id"][:, None] * np.linspace(0.001, 1.0, WIDTH)
    return {"vector": (phases % 1.0).astype(np.float32)}


def shrink(columns: Vectors) -> Vectors:
    ordered = np.sort(columns["vector"], axis=1)
    return {"vector": ordered[:, WIDTH // 2] - ordered[:, WIDTH // 4]}


def make(directory: str, rows: int) -> cedar.Pipeline:
    return (
        read(directory)
        .map_batches(embed, "id", into="vector", format="numpy")
        .shuffle(seed=3)
        .map_batches(shrink, "vector", format="numpy")
        .select("id", "x", "vector")
        .batch(256, last="keep")
    )
