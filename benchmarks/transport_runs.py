"""What ``benchmarks.transport`` runs in processes of its own: loaders, and programs that are killed or end early."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import cedar

_BATCH = 100


class Makes:
    """Rows of 1 MiB each; the array is there already, so that only its way is timed."""

    def __init__(self) -> None:
        self._array = np.random.default_rng(0).random(1 << 17)

    def __call__(self, _: int) -> np.ndarray[Any, Any]:
        return self._array


def blocks(count: int, executor: Any) -> Callable[[], dict[str, Any]]:
    """Batches of one array of 1 MiB."""
    rows = cedar.from_items([{"i": i} for i in range(count)])
    loader = rows.map(Makes, "i", into="x").select("x").batch(1).loader(executor=executor, workers=2)

    def run() -> dict[str, Any]:
        return {"rows": sum(batch["x"].nbytes for batch in loader)}

    run()
    return run


def cheap(x: int) -> int:
    return x * 3 + 1


def cheap_cedar(count: int) -> Callable[[], dict[str, Any]]:
    p = cedar.from_items([{"x": i} for i in range(count)]).map(cheap, "x", dtype=int).batch(_BATCH)
    loader = p.loader(executor="processes", workers=2, format="torch")

    def run() -> dict[str, Any]:
        return {"rows": sum(len(batch["x"]) for batch in loader)}

    run()
    return run


class Items:
    """The same as a map-style dataset."""

    def __init__(self, count: int) -> None:
        self._rows = [{"x": i} for i in range(count)]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: int) -> dict[str, int]:
        return {"x": cheap(self._rows[i]["x"])}


def cheap_torch(count: int) -> Callable[[], dict[str, Any]]:
    from torch.utils.data import DataLoader

    items: Any = Items(count)  # a map-style dataset by its methods: other contenders here do not import torch
    loader: DataLoader[Any] = DataLoader(items, batch_size=_BATCH, num_workers=2, persistent_workers=True)

    def run() -> dict[str, Any]:
        return {"rows": sum(len(batch["x"]) for batch in loader)}

    run()
    return run


FIRST = """
import time
import cedar
p = cedar.from_items([{"x": i} for i in range(1000)]).map(lambda x: x + 1, "x", dtype=int).batch(100)
loader = p.loader(executor="processes", workers=2)
start = time.perf_counter()
next(iter(loader))
cold = time.perf_counter() - start
for _ in loader: pass
warm = []
for _ in range(7):
    start = time.perf_counter()
    next(iter(p.loader(executor="processes", workers=2)))
    warm.append(time.perf_counter() - start)
print(cold, *warm)
"""

BUSY = """
import numpy as np
import cedar
from cedar.executors import processes
def slow(x):
    import time
    time.sleep(0.01)
    return np.full(30_000, x)
p = cedar.from_items([{"x": i} for i in range(100_000)]).map(slow, "x").batch(2)
kept = []
for number, batch in enumerate(p.loader(executor="processes", workers=2)):
    kept = [*kept[-20:], batch]
    if number == 2:
        print(*(pid for pool in processes.pools() for pid in pool.pids()), flush=True)
        if {ends}: break
import time
print(time.time(), flush=True)
"""

ABANDON = """
import gc, json, os, sys, threading, time
import numpy as np
import cedar
p = cedar.from_items([{"x": i} for i in range(400)]).map(lambda x: np.full(20_000, x), "x").batch(2)
def children():
    return sum(len(open(f"/proc/self/task/{t}/children").read().split()) for t in os.listdir("/proc/self/task"))
def shared():
    return sum("cedar" in name for name in os.listdir("/dev/shm"))
def left():
    gc.collect()
    maps = open("/proc/self/maps").read().count("memfd:cedar")
    return [threading.active_count(), len(os.listdir("/proc/self/fd")), maps, children(), shared()]
def cycles(count):
    for number in range(count):
        iterator = iter(p.loader(executor="processes", workers=2))
        next(iterator)
        if number % 2: del iterator
def settled():
    time.sleep(2)
    found = None
    while found != (now := left()):
        found = now
        time.sleep(2)
    return found
cycles(100)  # by then each worker has had to make its arena
before = settled()
cycles(int(sys.argv[1]))
print(json.dumps([before, settled(), time.time()]))
"""

SMALL = """
import logging, os, sys
import numpy as np
import cedar
if sys.argv[1] == "file": del os.memfd_create
logging.basicConfig(format="%(levelname)s")
p = cedar.from_items([{"x": i} for i in range(300)]).map(lambda x: np.full(1 << 17, x), "x").batch(1)
kept = list(p.loader(executor="processes", workers=2))
print(sum(int(b["x"][0, -1]) == i for i, b in enumerate(kept)), os.statvfs("/dev/shm").f_blocks * 4096 >> 20)
"""
