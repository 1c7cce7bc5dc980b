"""Digests of one epoch over executors: ``python -m benchmarks.digests [--quick] [--only NAME ...]``.

Each of some forty functions (BLAS, FFT, torch, seeded classes, closures, generators, numba, C) runs through the same
pipeline inline, on 1, 2 and 7 threads, in processes, on Dask, and under plans that change in the middle of the epoch.
The native libraries of this process have as many threads as they begin with.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

if __name__ == "__main__" and not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import cedar
from benchmarks.digest_functions import FUNCTIONS, digest, pipeline
from cedar.operators.base import RowOperator
from cedar.plan import graph
from cedar.plan.data import Plan
from cedar.plan.graph import Node

_QUICK = ("gemv", "torch_product", "torch_softmax", "spectrum", "SeededTorch", "Unseeded", "pieces", "parallel")
WORKERS = 2


def in_processes(root: Node) -> Plan:
    """The pipeline as written, its functions in processes."""

    done: dict[int, Node] = {}
    for node in graph.walk(root):
        inputs = tuple(done[id(below)] for below in node.inputs)
        place = "processes" if isinstance(node.operator, RowOperator) else ""
        done[id(node)] = dataclasses.replace(node, inputs=inputs, origin=node, place=place)
    return Plan(root, done[id(root)], method="local")


def changing(made: cedar.Pipeline, **options: Any) -> cedar.Loader:
    """A loader whose functions move between threads and processes at every window's end."""
    loader = made.loader(executor="threads", workers=WORKERS, plan="off", **options)
    plans: Any = loader._epochs.job.plans
    order = [in_processes(made.node), Plan.as_written(made.node)]
    polls = 0

    def poll() -> None:
        nonlocal polls
        polls += 1
        if plans._next is None and len(plans.history) < 20:
            plans._schedule_switch(order[polls % 2], "in turn")

    plans.poll = poll
    return loader


RUNS: dict[str, Callable[[cedar.Pipeline], cedar.Loader]] = {
    "inline": lambda made: made.loader(executor="inline"),
    "1 thread": lambda made: made.loader(executor="threads", workers=1),
    "2 threads": lambda made: made.loader(executor="threads", workers=2),
    "7 threads": lambda made: made.loader(executor="threads", workers=7),
    "processes": lambda made: made.loader(executor="processes", workers=WORKERS),
    "plans change": changing,
    "dask": lambda made: made.loader(executor="dask", workers=WORKERS),
}


def digests(names: list[str], runs: list[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Each function's digests, by run."""
    for name in names:
        found = {run: digest(RUNS[run](pipeline(name))) for run in runs}
        with ThreadPoolExecutor(3) as pool:
            found["a pool"] = digest(pipeline(name).loader(executor=pool))
        yield name, found


def main(arguments: list[str] | None = None) -> int:
    """Print a line for each function; 1 if digests differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="eight functions, no Dask")
    parser.add_argument("--only", nargs="+", choices=list(FUNCTIONS), metavar="NAME", help="of functions")
    options = parser.parse_args(arguments)
    names = options.only or list(_QUICK if options.quick else FUNCTIONS)
    runs = [run for run in RUNS if run != "dask" or not options.quick]
    start, differing = time.perf_counter(), 0
    for name, found in digests(names, runs):
        equal = len(set(found.values())) == 1
        differing += not equal
        print(f"{name:20} {found['inline'] if equal else found}", flush=True)
    seconds = time.perf_counter() - start
    print(f"{len(names)} functions, {len(runs) + 1} runs each, {differing} differing, {seconds:.0f} s")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
