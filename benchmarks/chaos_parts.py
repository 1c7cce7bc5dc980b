"""The parts of the chaos benchmark, each in its own process."""

from __future__ import annotations

import faulthandler
import gc
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import cedar
import cedar.testing
from benchmarks.chaos_stops import stops as measure_stops
from benchmarks.harness import Figure, Form, at_least, at_most, reported
from cedar.executors import processes

WORKERS = 2
ROWS = 50_000
_LONG = 60.0  # seconds without a batch: a hang


def _part(measure: Callable[[Form], list[Figure]], limit: float) -> Callable[[Form], Callable[[], dict[str, Any]]]:
    """As a contender; where it takes longer than ``limit`` seconds, its threads are shown and it ends."""

    def prepare(form: Form) -> Callable[[], dict[str, Any]]:
        logging.getLogger("cedar").setLevel(logging.ERROR)

        def run() -> dict[str, Any]:
            faulthandler.dump_traceback_later(limit, exit=True)
            figures = measure(Form(form))
            faulthandler.cancel_dump_traceback_later()
            return {"figures": [asdict(figure) for figure in figures]}

        return run

    return prepare


def pipeline(rows: int = ROWS, turns: int = 400) -> cedar.Pipeline:
    """Rows x = 0 .. rows - 1, shuffled, with some 30 us of Python for each."""

    def work(x: int) -> int:
        word = x
        for _ in range(turns):
            word = (word * 31 + 7) & 0xFFFFFFFF
        return x if word >= 0 else -1

    source = cedar.from_items([{"x": i} for i in range(rows)])
    return source.map(work, "x", dtype=int).shuffle(seed=1).batch(64, last="keep")


def _order(epoch: int, rows: int) -> list[int]:
    """The rows of an epoch, in order."""
    with pipeline(rows, 0).loader(executor="threads", plan="off", epoch=epoch) as loader:
        return [x for batch in loader for x in batch["x"].tolist()]


def _kills(executor: Any, form: Form) -> list[Figure]:
    kills_wanted, epochs_wanted, rate = form.pick((200, 20, 0.5), (20, 4, 1.0), (1, 1, 2.0))
    rows = form.pick(ROWS, ROWS, 5000)
    lost = repeated = moved = hangs = epochs = 0
    waits: list[float] = []
    cedar.testing.assert_deterministic(pipeline(640, 0), executors=[executor], workers=WORKERS)  # and all is warm
    killing = cedar.testing.kill_workers(rate, seed=7, most=kills_wanted)
    with killing as kills, pipeline(rows).loader(executor=executor, workers=WORKERS, plan="off") as loader:
        while epochs < epochs_wanted or kills.count < kills_wanted:
            got: list[int] = []
            longest = 0.0
            begun = time.monotonic()
            for batch in loader:
                longest, begun = max(longest, time.monotonic() - begun), time.monotonic()
                got += batch["x"].tolist()
            waits.append(longest)
            hangs += longest > _LONG
            expected = _order(epochs, rows)
            lost += (Counter(expected) - Counter(got)).total()
            repeated += (Counter(got) - Counter(expected)).total()
            moved += sum(a != b for a, b in zip(expected, got, strict=False))
            epochs += 1
        report, recoveries = loader.report(), list(loader._epochs.job.metrics.deaths.recoveries)
    name = f"{executor}: {kills.count} SIGKILLs over {epochs} epochs of {rows:,} rows"
    note = f"{report.restarts} of them hit a task"
    figures = [
        at_most(f"{name}: rows lost", 0, [lost], "rows", note=note),
        at_most(f"{name}: rows repeated", 0, [repeated], "rows"),
        at_most(f"{name}: rows in another place", 0, [moved], "rows"),
        at_most(f"{name}: hangs (over {_LONG:.0f} s)", 0, [hangs], "hangs", note=f"longest wait {max(waits):.1f} s"),
    ]
    if recoveries:
        what, values = f"{executor}: from a task's loss until it is done", recoveries
        figures.append(at_most(what, 0.5, values, "s") if executor == "processes" else reported(what, values, "s"))
    return figures


def _pace(form: Form) -> list[Figure]:
    """Throughput at one kill in 10 s against none, in turns."""
    rounds, seconds, every = form.pick((5, 20.0, 10.0), (1, 10.0, 10.0), (1, 1.0, 1.0))
    times = [(i + 0.5) * every for i in range(int(seconds / every))]
    shares = []
    with pipeline(form.pick(ROWS, ROWS, 5000)).loader(executor="processes", workers=WORKERS, plan="off") as loader:
        _rows_in(loader, form.pick(5.0, 5.0, 0.5), [])
        for _ in range(rounds):
            calm = _rows_in(loader, seconds, [])
            shares.append(_rows_in(loader, seconds, times) / calm)
    return [
        at_least("processes: throughput at one kill in 10 s / at none", 0.9, shares, "x", note=f"{rounds} round(s)")
    ]


def _rows_in(loader: cedar.Loader, seconds: float, kills: list[float]) -> float:
    """Rows per second over whole epochs, with workers killed at these times; rows come late in a shuffled epoch."""
    timers = [threading.Timer(at, _kill_one) for at in kills]
    for timer in timers:
        timer.start()
    begun, rows = time.monotonic(), 0
    while time.monotonic() - begun < seconds:
        rows += sum(len(batch["x"]) for batch in loader)
    took = time.monotonic() - begun
    for timer in timers:
        timer.join()
    return rows / took


def _kill_one() -> None:
    pids = [pid for pool in processes.pools() for pid in pool.pids()]
    if pids:
        os.kill(pids[0], signal.SIGKILL)


def _poison(form: Form) -> list[Figure]:
    """Three rows that segfault, exhaust memory, and call os._exit."""
    rows = form.pick(ROWS, 5000, 300)
    bad: dict[int, Any] = {rows // 5: "segfault", rows // 2: "memory", rows - 7: "exit"}

    def work(x: int) -> int:
        if x in bad:
            cedar.testing.crash(bad[x])
        return x

    source = cedar.from_items([{"x": i} for i in range(rows)])
    with tempfile.TemporaryDirectory() as folder:
        p = source.map(work, "x", dtype=int, on_error=cedar.Skip(quarantine=folder)).batch(64, last="keep")
        with p.loader(executor="processes", workers=WORKERS, plan="off") as loader:
            got = [x for batch in loader for x in batch["x"].tolist()]
        lines = [json.loads(line) for line in (Path(folder) / "rank-0.jsonl").read_text().splitlines()]
    expected = [x for x in range(rows) if x not in bad]
    named = sum(line["row"] in bad for line in lines)
    return [
        at_most("3 rows that end processes: other rows lost or moved", 0, [got != expected], "runs"),
        at_least("3 rows that end processes: named and quarantined", 3, [named], "rows"),
        at_most(
            "3 rows that end processes: extra deaths", 6, [loader.report().restarts - 3], "deaths", note="two each"
        ),
    ]


def _resumes(form: Form) -> list[Figure]:
    """Random pipelines, stopped and gone on with on other executors, workers and ranks."""
    from tests.test_exactness import PROPERTIES, check_seeds

    cases = form.pick(2500, 20, 2)
    failed = 0
    for seed in range(cases):
        try:
            check_seeds([seed])
        except Exception:
            if form is Form.TINY:
                raise
            logging.getLogger("cedar").exception("seed %d", seed)
            failed += 1
        if (seed + 1) % 100 == 0:
            print(f"{seed + 1:,} random pipelines, {failed} failed", file=sys.stderr, flush=True)
    note = f"{cases:,} random pipelines, {cases * len(PROPERTIES):,} cases of stop, resume, executor, workers and ranks"
    return [at_most("random pipelines: rows lost, repeated or reordered", 0, [failed], "pipelines", note=note)]


def _soak(form: Form) -> list[Figure]:
    """Many batches over many epochs, workers killed all the while, loaders of other sizes in between."""
    epochs, batches = form.pick((200, 5000), (10, 2000), (10, 50))
    p = cedar.from_items([{"x": i} for i in range(batches * 8)]).map(abs, "x", dtype=int).batch(8)
    sizes: list[float] = []
    kills = restarts = done = 0
    with cedar.testing.kill_workers(form.pick(0.2, 0.5), seed=3) as killed:
        for turn in range(10):
            with p.loader(executor="processes", workers=1 + turn % 2, plan="off") as loader:
                for _ in range(epochs // 10):
                    done += sum(1 for _ in loader)
                    gc.collect()
                    sizes.append(_resident())
                restarts += loader.report().restarts
        kills = killed.count
    rest = sizes[len(sizes) // 5 :]  # at first, caches fill
    slope = float(np.polyfit(np.arange(len(rest)) * batches / 1e5, rest, 1)[0]) if len(rest) > 1 else 0.0
    note = f"{done:,} batches over {epochs} epochs, {kills} kills, {restarts} of them hit a task"
    what = "soak: growth of resident memory per 100,000 batches"
    if form:
        return [reported(what, [slope], "MB", note=f"{note}: too few to tell")]
    return [at_most(what, 1.0, [slope], "MB", note=note), reported("soak: resident memory", sizes, "MB")]


def _resident() -> float:
    """Of this process, in MB."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


kills = _part(lambda form: _kills("processes", form), 1800)
dask = _part(lambda form: _kills("dask", form), 1800)
pace = _part(_pace, 900)
poison = _part(_poison, 3600)
stops = _part(measure_stops, 1800)
resumes = _part(_resumes, 7200)
soak = _part(_soak, 3600)
