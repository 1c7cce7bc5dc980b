"""Audio: 16-bit waves to log spectrograms; the first second is cut out after what works on every sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import cedar
from benchmarks.suite.case import read, write
from cedar.operators.algebra import pointwise, resampling, spatial

RATE = 16_000  # of the files
LOW = 8_000  # of the spectrogram
WINDOW, HOP = 256, 40
Array = npt.NDArray[Any]


def data(directory: str, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    waves = []
    for _ in range(rows):
        time = np.arange(int(rng.uniform(1.0, 4.0) * RATE)) / RATE
        wave = np.sin(2 * np.pi * rng.uniform(100, 2000) * time) + rng.normal(0, 0.1, len(time))
        waves.append((wave * 8000).astype("<i2").tobytes())
    write(directory, {"wave": waves, "word": rng.integers(0, 35, rows)}, 64)


def decode(wave: bytes) -> Array:
    return np.frombuffer(wave, dtype="<i2")


@pointwise
def to_float(wave: Array) -> Array:
    return wave.astype(np.float32) / np.float32(32_768)


@pointwise
def compress(wave: Array) -> Array:
    """Quiet parts louder: mu-law."""
    loud = np.log1p(np.abs(wave) * np.float32(255)) / np.float32(np.log(256))
    return np.copysign(loud, wave)


@spatial
def trim(wave: Array) -> Array:
    return wave[:RATE]


@resampling
def resample(wave: Array) -> Array:
    places = np.arange(LOW) * (RATE / LOW)
    found: Array = np.interp(places, np.arange(len(wave)), wave).astype(np.float32)
    return found


def spectrogram(wave: Array) -> Array:
    starts = np.arange(0, len(wave) - WINDOW + 1, HOP)
    frames = wave[starts[:, None] + np.arange(WINDOW)] * np.hanning(WINDOW)
    return np.log(np.abs(np.fft.rfft(frames)) ** 2 + 1e-6).astype(np.float32)


def make(directory: str, rows: int) -> cedar.Pipeline:
    return (
        read(directory)
        .map(decode, "wave", dtype=object)
        .map(to_float, "wave", dtype=object)
        .map(compress, "wave", dtype=object)
        .map(trim, "wave", dtype=object)
        .map(resample, "wave", dtype=object)
        .map(spectrogram, "wave", into="spectrogram")
        .select("spectrogram", "word")
        .batch(16, last="keep")
    )
