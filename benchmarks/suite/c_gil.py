"""A trap: functions in C that hold Python's lock for long: parsing JSON, sorting."""

from __future__ import annotations

import json

import numpy as np

import cedar
from benchmarks.suite.case import read, write

NUMBERS = 300


def data(directory: str, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    texts = [json.dumps(rng.integers(0, 10**6, NUMBERS).tolist()) for _ in range(rows)]
    write(directory, {"json": texts, "n": np.arange(rows)}, 256)


def median(text: str) -> int:
    number: int = sorted(json.loads(text), key=str)[NUMBERS // 2]
    return number


def make(directory: str, rows: int) -> cedar.Pipeline:
    return read(directory).map(median, "json", into="median", dtype=int).drop("json").batch(32, last="keep")
