"""A trap: two branches zipped, each with the same expensive prefix, which should be computed once."""

from __future__ import annotations

import zlib

import numpy as np

import cedar
from benchmarks.suite.case import read, write

SIZE = 8192


def data(directory: str, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    blobs = [rng.integers(0, 16, SIZE, dtype=np.uint8).tobytes() for _ in range(rows)]
    write(directory, {"blob": blobs, "n": np.arange(rows)}, 256)


def squeeze(blob: bytes) -> bytes:
    return zlib.compress(blob, 6)


def size(blob: bytes) -> int:
    return len(blob)


def checksum(blob: bytes) -> int:
    return zlib.crc32(blob)


def prefix(directory: str) -> cedar.Pipeline:
    """Built again each time: equal, but not one object."""
    return read(directory).map(squeeze, "blob", dtype=bytes)


def make(directory: str, rows: int) -> cedar.Pipeline:
    sizes = prefix(directory).map(size, "blob", into="size", dtype=int).select("n", "size")
    sums = prefix(directory).map(checksum, "blob", into="checksum", dtype=int).select("checksum")
    return cedar.zip(sizes, sums).batch(32, last="keep")
