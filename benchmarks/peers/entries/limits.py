"""What bounds every worker: parts of the work alone, and all of it split ideally over two processes; nothing is
delivered.

The two processes are forked if nothing runs yet, and each takes every other batch's worth of rows. "loop" is the
plain loop of one process, which delivers its batches.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from benchmarks.peers.entry import Entry, Epochs
from benchmarks.peers.workload import Chunks, Rows, Work, Workload

PROCESSES = 2


def settings(workload: Workload) -> tuple[str, ...]:
    return (*workload.limits, "ceiling", "loop")


def run(workload: Workload, work: Work, setting: str) -> Iterable[Any]:
    if setting == "loop":
        return Epochs(lambda: loop(work))
    part = all_of_it if setting == "ceiling" else workload.limits[setting]
    return Epochs(lambda: iter([split(part, work)]))


def loop(work: Work) -> Iterator[Any]:
    """One after the other, as anyone would write it first."""
    if isinstance(work, Chunks):
        return work.assemble(work.chunk(i) for i in range(len(work)))
    assert isinstance(work, Rows)
    return (work.many(indices) for indices in work.batches())


def all_of_it(work: Work, indices: Sequence[int]) -> int:
    """Everything that is to be done, batches included."""
    if isinstance(work, Chunks):
        batches = work.assemble(work.chunk(i) for i in indices)
        return sum(len(work.ids(batch, 0)) for batch in batches)
    assert isinstance(work, Rows)
    for start in range(0, len(indices), work.batch):
        work.many(indices[start : start + work.batch])
    return len(indices)


def split(part: Callable[[Any, Sequence[int]], int], work: Work) -> int:
    """The part in two processes at once, half of the rows each; gives how many rows they worked on."""
    units = len(work) if isinstance(work, Chunks) else work.rows
    group = 1 if isinstance(work, Chunks) else work.batch
    shares: list[list[int]] = [[] for _ in range(PROCESSES)]
    for number, start in enumerate(range(0, units, group)):
        shares[number % PROCESSES] += range(start, min(start + group, units))
    readers = []
    for share in shares:
        read, write = os.pipe()
        if not (pid := os.fork()):
            os.write(write, str(part(work, share)).encode())
            os._exit(0)
        os.close(write)
        readers.append((pid, read))
    done = 0
    for pid, read in readers:
        told = os.read(read, 64)
        os.close(read)
        os.waitpid(pid, 0)
        if not told:
            raise RuntimeError(f"{part.__name__} failed in its process; its error is on stderr")
        done += int(told)
    return done


ENTRY = Entry(
    name="LIMIT",
    module="numpy",
    environment="reference",
    requirements=(),
    distributions=(),
    settings=settings,
    run=run,
    limit=True,
)
