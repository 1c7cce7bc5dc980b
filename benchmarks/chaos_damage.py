"""Parts of the chaos benchmark: rows that damage the heap of their process, and workers that are stopped."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pyarrow as pa

import cedar
from benchmarks.harness import Figure, Form, at_most, reported
from cedar.datasets.base import Split
from cedar.engine.streams import stage
from cedar.executors import processes

BLOCK = 1000  # rows of a split
_LATER = 20  # rows that damage takes to show, at most
_CHUNK = 2048  # bytes: beyond what the allocator keeps in lists that it does not check
_WAIT = 60.0  # seconds without a batch: a hang
_EVERY = 1.5  # seconds between two stops


class Numbers:
    """Rows x = 0 .. rows - 1, in splits that are a block each."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def splits(self) -> list[Split]:
        return [Split(file=i, rows=BLOCK, bytes=8 * BLOCK) for i in range(self.rows // BLOCK)]

    def read(self, split: Split) -> Iterator[pa.Table]:
        yield pa.table({"x": range(split.file * BLOCK, (split.file + 1) * BLOCK)})


def damages(x: int, later: dict[int, int]) -> int:
    """Takes memory and gives it back some rows later; at rows of ``later``, its header is overwritten in between."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    held: list[list[int]] = sys.__dict__.setdefault("_benchmark_held", [])
    at = libc.malloc(_CHUNK)
    if x in later:
        ctypes.memset(at - 8, 0x41, 8)
    held.append([at, later.get(x, x % (_LATER + 1))])
    for entry in list(held):
        if entry[1] == 0:
            held.remove(entry)
            libc.free(entry[0])  # where its header is damaged, the process ends here
        entry[1] -= 1
    return x


def convictions(form: Form) -> list[Figure]:
    """Rows at random places whose damage ends the process up to 20 rows later."""
    count, rows = form.pick((200, 40_000), (10, 4000), (2, 2000))
    draw = random.Random(11)
    later = {x: draw.randint(0, _LATER) for x in draw.sample(range(rows), count)}
    guilty = {x for x in later if x % BLOCK + later[x] < BLOCK}  # of others, it shows in a later block, if at all
    p = cedar.from_source(Numbers(rows)).map(lambda x: damages(x, later), "x", dtype=int, on_error=cedar.Skip())
    with _whole_blocks(), p.batch(100, last="keep").loader(executor="processes", workers=2, plan="off") as loader:
        got = [x for batch in loader for x in batch["x"].tolist()]
        report, deaths = loader.report(), loader._metrics.deaths
    dropped = set(range(rows)) - set(got)
    innocent = len(dropped - set(later)) + (got != sorted(got))
    name = f"{count} of {rows:,} rows damage the heap, and their process ends up to {_LATER} rows later"
    note = (
        f"{deaths.acquitted} acquitted; {count - len(guilty)} whose damage shows in a later block end none in their own"
    )
    return [
        at_most(f"{name}: innocent rows dropped or moved", 0, [innocent], "rows"),
        at_most(f"{name}: guilty rows kept", 0, [len(guilty - dropped)], "rows", note=note),
        at_most(f"{name}: deaths for each", 4, [report.restarts / count], "deaths", note=f"{report.restarts} in all"),
    ]


@contextmanager
def _whole_blocks() -> Iterator[None]:
    """A task has a block: where tasks are cut by the time that they take, damage shows in the next one's process."""
    first = mock.patch.object(stage, "_FIRST_ROWS", BLOCK)
    with first, mock.patch.object(stage.StageFlow, "_adapt"):
        yield


def stops(form: Form) -> list[Figure]:
    """Workers that SIGSTOP stops, one after the other."""
    wanted, rows = form.pick((50, 50_000), (4, 20_000), (1, 500))

    def work(x: int) -> int:
        until = time.perf_counter() + 1e-3
        while time.perf_counter() < until:
            pass
        return x

    p = cedar.from_items([{"x": i} for i in range(rows)]).map(work, "x", dtype=int).batch(64, last="keep")
    lost = repeated = hangs = 0
    waits: list[float] = []
    with (
        _stopping(wanted) as stopped,
        p.loader(executor="processes", workers=2, plan="off") as loader,
    ):
        while len(stopped) < wanted:
            got: list[int] = []
            longest, begun = 0.0, time.monotonic()
            for batch in loader:
                longest, begun = max(longest, time.monotonic() - begun), time.monotonic()
                got += batch["x"].tolist()
            waits.append(longest)
            hangs += longest > _WAIT
            lost += (Counter(range(rows)) - Counter(got)).total()
            repeated += (Counter(got) - Counter(range(rows))).total()
        report = loader.report()
    name = f"{len(stopped)} SIGSTOPs of workers over {len(waits)} epochs of {rows:,} rows"
    ended = sum("stopped by a signal" in death for death in report.deaths)
    return [
        at_most(f"{name}: rows lost", 0, [lost], "rows", note=f"{ended} of them had a task"),
        at_most(f"{name}: rows repeated", 0, [repeated], "rows"),
        at_most(f"{name}: waits of over {_WAIT:.0f} s", 0, [hangs], "hangs"),
        reported(f"{name}: longest wait of an epoch", waits, "s"),
    ]


@contextmanager
def _stopping(most: int) -> Iterator[list[int]]:
    stopped: list[int] = []
    over, draw = threading.Event(), random.Random(3)

    def run() -> None:
        while len(stopped) < most and not over.wait(_EVERY):
            pids: list[Any] = [pid for pool in processes.pools() for pid in pool.pids() if pid not in stopped]
            if pids:
                stopped.append(draw.choice(pids))
                os.kill(stopped[-1], signal.SIGSTOP)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield stopped
    finally:
        over.set()
        thread.join()
