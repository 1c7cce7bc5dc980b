"""Part of the chaos benchmark: workers that are stopped."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cedar
from benchmarks.harness import Figure, Form, at_most, reported
from cedar.executors import processes

_WAIT = 60.0  # seconds without a batch: a hang
_EVERY = 1.5  # seconds between two stops


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
