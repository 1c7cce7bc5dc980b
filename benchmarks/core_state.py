"""The cost of a state, and of a resume from it."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import cedar
from benchmarks.harness import OUT, Figure, Form, at_most, reported
from cedar import col

_GROUP, _GROUPS, _WINDOW, _BATCH = 10_000, 40, 50_000, 256


def measure(form: Form) -> list[Figure]:
    path = _file()
    pipeline = ten_operators(path)
    stops = form.pick((3, 100, 190, 411, 780), (3, 190), (780,))
    seconds: list[float] = []
    sizes: list[float] = []
    replayed: list[float] = []
    firsts: list[float] = []
    for stop in stops:
        loader = pipeline.loader(executor="threads")
        state, took = _stopped(loader, stop)
        seconds += took
        sizes.append(len(json.dumps(state).encode()) / 1024)
        again, first = _resumed(pipeline, state, stop)
        replayed.append(again / _WINDOW)
        firsts.append(first)
    worst = max(replayed)
    return [
        at_most("state_dict() at 10 operators", 1.0, [s * 1e3 for s in seconds], "ms"),
        at_most("state_dict() at 10 operators: JSON", 4.0, sizes, "KiB"),
        at_most(
            "resume: rows read again / rows of a window", 1.0, [worst], "x",
            note=f"the most of {len(stops)} stops; a window of {_WINDOW:,} rows, row groups of {_GROUP:,}",
        ),
        reported("resume: first batch", [s * 1e3 for s in firsts], "ms"),
    ]  # fmt: skip


def ten_operators(path: str) -> Any:
    """read, filter, with_columns, map, drop, shuffle, map, select, batch, map."""
    pipeline = cedar.read_parquet(path).filter(col("n") >= 0).with_columns(x=col("x") + 1).map(_plus, "n")
    pipeline = pipeline.drop("unused").shuffle(seed=3, window=_WINDOW).map(_noise, "x", random=True)
    return pipeline.select("n", "x").batch(_BATCH, last="keep").map(_half, "x")


def _stopped(loader: Any, stop: int) -> tuple[dict[str, Any], list[float]]:
    batches = iter(loader)
    for _ in range(stop):
        next(batches)
    took = []
    for _ in range(50):
        start = time.perf_counter()
        state = loader.state_dict()
        took.append(time.perf_counter() - start)
    batches.close()
    return state, [statistics.median(took)]


def _resumed(pipeline: Any, state: dict[str, Any], stop: int) -> tuple[int, float]:
    """Rows read a second time when the rest of the epoch is run, and seconds until its first batch."""
    loader = pipeline.loader(executor="threads")
    loader.load_state_dict(state)
    start = time.perf_counter()
    batches = iter(loader)
    next(batches)
    first = time.perf_counter() - start
    for _ in batches:
        pass
    left = _GROUP * _GROUPS - stop * _BATCH
    return int(loader.report().rows_read) - left, first


def _file() -> str:
    path = Path(OUT) / "data" / "state.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = _GROUP * _GROUPS
    table = pa.table({"n": np.arange(rows), "x": np.arange(rows) / 3, "unused": np.zeros(rows)})
    pq.write_table(table, path, row_group_size=_GROUP)
    return str(path)


def _plus(n: int) -> int:
    return n + 1


def _noise(x: float, rng: np.random.Generator) -> float:
    return x + rng.random()


def _half(x: Any) -> Any:
    return x / 2
