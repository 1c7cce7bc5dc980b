"""An expensive deterministic part, kept, and a cheap random part behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import cedar
from benchmarks.suite.case import read, write

SIZE = 4096
Vector = npt.NDArray[Any]


def data(directory: str, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    waves = [rng.bytes(SIZE) for _ in range(rows)]
    write(directory, {"wave": waves, "n": np.arange(rows)}, 128)


def features(wave: bytes) -> Vector:
    """64 numbers."""
    values = np.frombuffer(wave, dtype=np.uint8).astype(np.float64)
    echo = np.correlate(values, values[:257], "valid")
    means: Vector = echo.reshape(64, -1).mean(axis=1).astype(np.float32)
    return means


def noise(features: Vector, rng: np.random.Generator) -> Vector:
    return features + np.float32(rng.standard_normal())


def make(directory: str, rows: int) -> cedar.Pipeline:
    return (
        read(directory)
        .map(features, "wave", into="features")
        .select("n", "features")
        .cache("memory")
        .map(noise, "features", random=True)
        .batch(32, last="keep")
    )
