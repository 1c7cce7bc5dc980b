"""Functions that nothing can see into, and rows that take far longer than others: ``python -m benchmarks.functions``.

A function that works for a millisecond, with the GIL held for a share of it, and returns an array. Next to it, in
turns,
the least that another loader could do: two threads of a pool, eight calls ahead, ``numpy.stack``. CPU seconds stand
first: they say more where others share the machine. Then a function that sleeps for a time drawn from a lognormal
distribution, with ``order="exact"`` and ``order="any"``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import resource
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

import cedar
from benchmarks.harness import add_form

_TEXT = memoryview(bytes(1 << 20))
_WORK = 0.001  # seconds of a call
_SIZES = {1_000: (1024, 32), 600_000: (1024, 32), 8_000_000: (128, 8)}  # bytes of a row: rows, and those of a batch
_WORKERS, _AHEAD = 2, 8
_MEAN, _SIGMA = 0.010, 1.5


def _least(work: Callable[[], object]) -> float:
    times = []
    for _ in range(20):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def _count(steps: int) -> int:
    number = 0
    for step in range(steps):
        number += step
    return number


def function(size: int, held: float) -> Callable[[int], npt.NDArray[np.uint8]]:
    """A function that holds the GIL for a share of its time, and returns ``size`` bytes."""
    span = min(int((1 - held) * _WORK / _least(lambda: hashlib.sha256(_TEXT).digest()) * len(_TEXT)), len(_TEXT))
    steps = int(held * _WORK / _least(lambda: _count(10_000)) * 10_000)

    def make(i: int) -> npt.NDArray[np.uint8]:
        if span:
            hashlib.sha256(_TEXT[:span]).digest()
        _count(steps)
        return np.full(size, i & 255, np.uint8)

    return make


def least(make: Callable[[int], Any], rows: int, batch: int) -> Iterator[Any]:
    """Batches by a pool of threads and ``numpy.stack``, and nothing else."""
    with ThreadPoolExecutor(_WORKERS) as pool:
        numbers = iter(range(rows))
        calls = deque(pool.submit(make, i) for i in islice(numbers, _AHEAD))
        found: list[Any] = []
        while calls:
            found.append(calls.popleft().result())
            calls.extend(pool.submit(make, i) for i in islice(numbers, 1))
            if len(found) == batch:
                yield np.stack(found)
                found = []


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measured(batches: Iterator[Any], rows: int) -> tuple[float, float, float]:
    """Microseconds of CPU and of wall time per row, and seconds to the first batch."""
    began, worked = time.perf_counter(), _cpu()
    next(batches)
    first = time.perf_counter() - began
    for _ in batches:
        pass
    return (_cpu() - worked) / rows * 1e6, (time.perf_counter() - began) / rows * 1e6, first


def compare(size: int, held: float, rounds: int, share: int) -> dict[str, Any]:
    """Medians of a later epoch, ours and the least there can be."""
    rows, batch = _SIZES[size][0] // share, _SIZES[size][1]
    make = function(size, held)
    pipeline = cedar.from_items([{"i": i} for i in range(rows)]).map(make, "i", into="a").drop("i").batch(batch)
    with pipeline.loader(executor="threads", workers=_WORKERS) as loader:
        fresh = measured(iter(loader), rows)[2]
        turns = [(measured(least(make, rows, batch), rows), measured(iter(loader), rows)) for _ in range(rounds)]
    other, ours = (
        [statistics.median(column) for column in zip(*side, strict=True)] for side in zip(*turns, strict=True)
    )
    return {
        "bytes": size, "held": held, "cpu us/row": [round(other[0]), round(ours[0])],
        "per CPU second": round(other[0] / ours[0], 3), "wall": round(other[1] / ours[1], 3),
        "first batch s": [round(other[2], 3), round(ours[2], 3), round(fresh, 3)],
    }  # fmt: skip


def uneven(rows: int, workers: int) -> dict[str, Any]:
    """Rows/s where some rows take far longer than others."""

    def sleeps(i: int) -> int:
        time.sleep(_MEAN * random.Random(i).lognormvariate(0, _SIGMA))
        return i

    total = sum(_MEAN * random.Random(i).lognormvariate(0, _SIGMA) for i in range(rows))
    pipeline = cedar.from_items([{"i": i} for i in range(rows)]).shuffle().map(sleeps, "i", dtype="int64").batch(32)
    found: dict[str, Any] = {"most": round(rows * workers / total)}
    for order in ("exact", "any"):
        with pipeline.loader(executor="threads", workers=workers, plan="off", order=order) as loader:
            found[order] = round(1e6 / measured(iter(loader), rows)[1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_form(parser, "three rounds of each")
    rounds, share = parser.parse_args().form.pick((7, 1), (3, 1), (1, 16))
    for size in _SIZES:
        for held in (0.0, 0.3, 1.0):
            print(json.dumps(compare(size, held, rounds, share)), flush=True)
    print(json.dumps({"lognormal, sigma 1.5, rows/s": uneven(max(400 * rounds // share, 64), 8)}))


if __name__ == "__main__":
    main()
