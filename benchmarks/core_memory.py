"""Memory while gigabytes of Parquet stream through: flat, and no more than what design promises to hold."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psutil
import pyarrow.parquet as pq

from benchmarks.features import BATCH, features, prepared
from benchmarks.harness import Contender, Figure, Form, Sample, at_most

_WORKERS = 2
_GROUP = 20_000  # rows; about 25 MB decoded
_SLACK = 100e6


def measure(form: Form) -> list[Figure]:
    small = features(1000, distinct=1, group=1000)
    group_bytes = _decoded(features(_GROUP, distinct=1, group=_GROUP)[0])
    count = int(form.pick(10e9, 0.8e9, 0.1e9) / group_bytes) + 1
    files = features(count * _GROUP, distinct=2, group=_GROUP)
    window = -(-max(count * group_bytes / 64, 8 << 20) // group_bytes) * group_bytes  # whole row groups
    allowed = window + 2 * _WORKERS * group_bytes + _SLACK
    with Contender("benchmarks.core_memory:streamed", small, files) as contender:
        base = int(contender.run().result["rss"])  # everything imported, a small epoch run
        sample, seen = sampled(contender)
    above = [used - base for used in seen]
    middle = len(above) // 2
    growth = max(above[middle:], default=0) - max(above[:middle], default=0)
    note = f"{count * group_bytes / 1e9:.1f} GB decoded at {sample.rate:,.0f} rows/s; base {base / 1e6:.0f} MB"
    parts = f"window {window / 1e6:.0f} + 2 row groups of {group_bytes / 1e6:.0f} per worker + 100"
    return [
        at_most(
            "memory above the base while streaming: peak",
            round(allowed / 1e6),
            [max(above) / 1e6],
            "MB",
            note=f"{parts}; {note}",
        ),
        at_most("memory while streaming: growth of the peak in the second half", 100, [growth / 1e6], "MB"),
    ]  # fmt: skip


def sampled(contender: Contender) -> tuple[Sample, list[int]]:
    """A run, and the resident bytes of its process all the while."""
    process = psutil.Process(contender.pid)
    done = threading.Event()
    seen: list[int] = []

    def watch() -> None:
        while not done.wait(0.02):
            seen.append(process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        sample = contender.run()
    finally:
        done.set()
        watcher.join()
    return sample, seen


def _decoded(path: str) -> int:
    return int(pq.read_table(path).nbytes)


def streamed(small: list[str], files: list[str]) -> Callable[[], dict[str, Any]]:
    """Filter, transform, shuffle, batch: first over a small file, then over all; ``rss`` is the memory at the end."""
    pending = [small, files]

    def run() -> dict[str, Any]:
        loader = prepared(pending.pop(0)).shuffle().batch(BATCH, last="keep")
        rows = 0
        for batch in loader.loader(executor="threads", workers=_WORKERS, format="torch"):
            rows += len(batch["label"])
        return {"rows": rows, "rss": psutil.Process().memory_info().rss}

    return run
