"""What ranks read of an epoch, by the real dealing, and how long a modeled object store takes to give it to them."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

import cedar
from benchmarks.scale_data import Ints, Size
from cedar.engine.runner import Runner
from cedar.engine.streams.assigned import AssignedStream
from cedar.engine.streams.lanes import assigned as parted
from cedar.engine.streams.splits import SplitStream

# ---- what is read ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A contiguous run of a rank: the batches that it takes, and the places of the splits that it reads for them."""

    rank: int
    batches: tuple[int, int]
    places: tuple[int, int]
    window: int  # splits of its first window


@dataclass(frozen=True)
class Dealt:
    """Who reads what.

    Args:
        runs: of all ranks, in order.
        steps: batches of each rank.
        order: the split at each place.
    """

    runs: list[Run]
    steps: Ints
    order: Ints


def assigned(loader: cedar.Loader, size: Size) -> Dealt:
    """The runs of all ranks, by the streams of one of them: what a rank does at its start, for each of them."""
    job = loader._epochs.job
    compiler, share = job.compiled(Runner("inline", 1), 0, [], dry=True)
    (splits,) = [s for s in compiler.streams if isinstance(s, SplitStream)]
    _, mine = compiler.top(share)
    layout = splits.layout(0)
    assert layout.before is not None
    ends = np.append(layout.starts[1:], len(layout.order))
    runs, steps = [], np.zeros(size.ranks, dtype=np.int64)
    for rank in range(size.ranks):
        for low, high in AssignedStream(mine.source, replace(mine.share, rank=rank, world=size.ranks)).spans(0):
            (([first, _], _), _), (([last, _], _), _) = (
                splits.seek_window(low * size.batch),
                splits.seek_window(high * size.batch - 1),
            )
            window, end = (int(np.searchsorted(layout.starts, at, side="right")) - 1 for at in (first, last))
            runs.append(Run(rank, (low, high), (first, int(ends[end])), int(ends[window]) - first))
            steps[rank] += high - low
    return Dealt(runs, steps, layout.order)


def lanes(loader: cedar.Loader, size: Size) -> list[Ints]:
    """The splits of all ranks, where row counts are unknown."""
    compiler, _ = loader._epochs.job.compiled(Runner("inline", 1), 0, [], dry=True)
    (stream,) = [s for s in compiler.streams if isinstance(s, SplitStream)]
    order = stream.layout(0).order
    return [order[lane] for lane in parted(stream._weights[order], size.ranks)]


# ---- how long that takes ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Storage:
    """The object store and the ranks' machines, as they are modeled.

    Args:
        latency: seconds until the first byte of a request.
        stream: bytes per second of one request.
        request: bytes that one request asks for, at most.
        rate: requests per second that the store answers, for all ranks.
        total: bytes per second that it gives to all ranks.
        link: bytes per second of one rank.
        ahead: splits that a rank has in flight.
        workers: that decode, of one rank.
        decode: bytes per second of one of them.
    """

    latency: float = 0.03
    stream: float = 90e6
    request: int = 8 << 20
    rate: float = 55_000.0
    total: float = 1e12
    link: float = 3e9
    ahead: int = 16
    workers: int = 8
    decode: float = 400e6

    def requests(self, sizes: Ints) -> Ints:
        """That each split takes."""
        return np.maximum(-(-sizes // self.request), 1)


@dataclass(frozen=True)
class Took:
    """Simulated seconds of each rank, to its first window and to its end, and when requests began, by whole seconds."""

    first: npt.NDArray[np.float64]
    end: npt.NDArray[np.float64]
    per_second: Ints


def took(reads: list[Ints], window: list[int], sizes: Ints, model: Storage, slow: float = 1.0) -> Took:
    """All ranks read at once, as fast as they can, with nothing waiting for a trainer.

    Args:
        reads: the splits that each rank reads, in order.
        window: how many of them its first window has.
        slow: rank 0 waits and decodes so many times as long.
    """
    ranks, counts = len(reads), model.requests(sizes)
    places, free, links = [0] * ranks, [[0.0] * model.workers for _ in range(ranks)], [0.0] * ranks
    first, end = np.zeros(ranks), np.zeros(ranks)
    waiting = [(0.0, rank) for _ in range(model.ahead) for rank in range(ranks)]  # each may ask for one more
    asked, given = 0.0, 0.0  # when the store is free to answer, and its line
    began: list[float] = []
    weights: list[int] = []
    while waiting:
        now, rank = waiting[0]
        place = places[rank]
        if place >= len(reads[rank]):
            heapq.heappop(waiting)
            continue
        places[rank] = place + 1
        split, factor = reads[rank][place], slow if rank == 0 else 1.0
        size, count = int(sizes[split]), int(counts[split])
        start = max(now, asked)
        asked = start + count / model.rate
        given = max(given, start) + size / model.total
        links[rank] = max(links[rank], start) + size * factor / model.link
        there = max(start + size / count * factor / model.stream, given, links[rank], asked) + model.latency * factor
        done = max(there, heapq.heappop(free[rank])) + size * factor / model.decode
        heapq.heappush(free[rank], done)
        heapq.heapreplace(waiting, (done, rank))
        end[rank] = max(end[rank], done)
        if place < window[rank]:
            first[rank] = max(first[rank], done)
        began.append(start)
        weights.append(count)
    return Took(first, end, np.bincount(np.asarray(began, dtype=np.int64), weights).astype(np.int64))
