"""Ways to fork a process that has used cedar; run as ``python fork_ways.py``."""

from __future__ import annotations

import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import cedar
from cedar import col

EXECUTORS = ["inline", "threads", "auto", "processes"]
LONG = bool(os.environ.get("CEDAR_LONG"))
EXECUTOR: Any = "inline"
PIPELINE = (
    cedar.from_items([{"x": i} for i in range(120)])
    .with_columns(y=col("x") * 2 + 1)
    .filter(col("x") % 3 > 0)
    .map(lambda y: y + 1, "y", into="z", dtype=int)
    .shuffle(seed=1)
    .batch(10)
)
LOADER = PIPELINE.loader(executor="threads", workers=1)


def rows(_: object = None, loader: Any = None) -> list[int]:
    """The rows of an epoch, in order; of a loader that was made before the fork, where one is given."""
    made = PIPELINE.loader(executor=EXECUTOR, workers=1) if loader is None else loader
    return [z for batch in made for z in batch["z"].tolist()]


def of_child(queue: Any) -> None:
    queue.put(rows())


def by_os_fork() -> list[int]:
    read, write = os.pipe()
    if not os.fork():
        try:
            os.write(write, ",".join(map(str, rows(loader=LOADER))).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        return [int(word) for word in file.read().split(",")]


def by_workers_of_a_server() -> list[int]:
    """As gunicorn with a preloaded application: children that end by themselves, while the parent continues."""
    read, write = os.pipe()
    if not os.fork():
        os.write(write, ",".join(map(str, rows())).encode())
        sys.exit(0)
    os.close(write)
    mine = rows()
    with os.fdopen(read) as file:
        theirs = [int(word) for word in file.read().split(",")]
    assert os.wait()[1] == 0
    return theirs if theirs == mine else []


def by_process() -> list[int]:
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=of_child, args=(queue,))
    process.start()
    found: list[int] = queue.get()
    process.join()
    return found


def by_pool() -> list[int]:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.map(rows, [0])[0]


def by_executor() -> list[int]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        return pool.submit(rows).result()


def by_torch() -> list[int]:
    import torch

    class Set(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(LOADER)

    loader = torch.utils.data.DataLoader(Set(), batch_size=None, num_workers=1, multiprocessing_context="fork")
    return [int(z) for batch in loader for z in batch["z"]]


WAYS = [by_os_fork, by_workers_of_a_server, by_process, by_pool, by_executor, by_torch]

if __name__ == "__main__":
    expected = rows()
    for number, way in enumerate(WAYS):
        for EXECUTOR in EXECUTORS if LONG else [EXECUTORS[number % 3]]:
            found = way()
            assert found == expected, (way.__name__, EXECUTOR, len(found), len(expected))
            print(way.__name__, EXECUTOR, flush=True)
    assert rows() == expected
