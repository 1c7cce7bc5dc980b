"""A trap: a random operator in the middle; its draws belong to rows, so the filter behind it may come first."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import cedar
from benchmarks.suite.case import Step, composed, read, write
from cedar import col

SIZE = 2048
Vector = npt.NDArray[Any]


def data(directory: str, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    waves = [rng.integers(0, 256, SIZE, dtype=np.uint8).tobytes() for _ in range(rows)]
    write(directory, {"wave": waves, "speaker": rng.integers(0, 10, rows), "n": np.arange(rows)}, 256)


def spectrum(wave: bytes) -> Vector:
    """Deterministic and expensive."""
    values = np.frombuffer(wave, dtype=np.uint8).astype(np.float64)
    return np.abs(np.fft.rfft(np.sort(values))).astype(np.float32)


def noise(spectrum: Vector, rng: np.random.Generator) -> Vector:
    return spectrum + rng.standard_normal(len(spectrum)).astype(np.float32)


def loudest(spectrum: Vector) -> int:
    return int(np.argsort(spectrum)[-2])


STEPS: dict[str, Step] = {
    "spectrum": lambda p: p.map(spectrum, "wave", into="spectrum"),
    "noise": lambda p: p.map(noise, "spectrum", random=True, name="noise"),
    "loudest": lambda p: p.map(loudest, "spectrum", into="loudest", dtype=int),
    "speaker": lambda p: p.filter(col("speaker") < 3),
}


def start(directory: str) -> cedar.Pipeline:
    return read(directory)


def finish(p: cedar.Pipeline) -> cedar.Pipeline:
    return p.select("n", "speaker", "spectrum", "loudest").batch(32, last="keep")


def make(directory: str, rows: int) -> cedar.Pipeline:
    return composed(start(directory), STEPS, finish)
